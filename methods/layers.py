"""The layers of a model value."""

from bench.method import Params


def layers(w: Params) -> list[tuple[int, int]]:
    """Where in the flat weights each layer lies: tensors whose names differ in the last part only are one."""
    runs: dict[str, tuple[int, int]] = {}
    at = 0
    for entry in w.spec.params:
        name = entry.name.rpartition(".")[0]
        runs[name] = runs.get(name, (at, at))[0], at + entry.size
        at += entry.size
    return list(runs.values())
