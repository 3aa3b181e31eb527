"""The layers of a model value."""

from bench.method import Params


def layers(w: Params) -> list[tuple[int, int]]:
    """Ranges (begin, end) of layers in the flat weights; tensors whose names differ only in the last part are one."""
    runs: dict[str, tuple[int, int]] = {}
    at = 0
    for entry in w.spec.params:
        name = entry.name.rpartition(".")[0]
        runs[name] = runs.get(name, (at, at))[0], at + entry.size
        at += entry.size
    return list(runs.values())
