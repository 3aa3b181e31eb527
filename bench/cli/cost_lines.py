"""The lines in which a dry run says what cells cost."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.runs.forecast.estimate import Estimate
    from bench.settings import Settings
    from sweeps.study import Study

SHARED = 900_000_000
"""Approximate bytes of Python and its libraries that the command and its processes take together."""
PYTHON = 300_000_000
"""Approximate bytes of Python and its libraries that each cell's process takes beside them."""

BASIS = """\
Time: {basis}; a busy machine takes longer.
{sent}
Memory: data and models at the peak of a round; Python and its libraries come on top, about 0.9 GB and 0.3 GB for each
cell that runs. Disk: of each cell that runs two checkpoints and one being written; tables come on top."""
ESTIMATED = (
    "an estimate to within a factor of two or so, by the rates of a core of today (`--measure` times rounds here)"
)
MEASURED = "rounds of {measured} of {cells} cells were timed here, or of others of their kind"
SCALED = "; the time of {scaled} is an estimate, scaled as those were"
REST = "; the rest is an estimate by the rates of a core of today"
SENT = "Sent: one model each way for each client's round, as FedAvg does{rest}; `--measure` counts what a method sends."


def cell_lines(runs: "Sequence[tuple[Settings, float]]", costs: "Sequence[Estimate | None]") -> list[str]:
    """A line for each cell: its time and its checkpoint; `runs` are settings and the share left to run."""
    from bench.results.cell_names import cell_name
    from bench.runs.progress import duration_text

    lines = []
    for (settings, share), cost in zip(runs, costs, strict=True):
        text = "no estimate" if share else "done"
        if cost:
            time = duration_text(cost.seconds * share)
            text = f"about {time} ({cost.basis}), a checkpoint of {_bytes(cost.checkpoint)}"
        lines.append(f"{cell_name(settings)}: {text}")
    return lines


def task_lines(
    tasks: dict[str, list[int]], runs: "Sequence[tuple[Settings, float]]", costs: "Sequence[Estimate | None]"
) -> list[str]:
    """A line for each task of a grid; `tasks` are the positions of its cells in `runs`."""
    lines = []
    for task, indices in tasks.items():
        methods, done = len({runs[i][0].name for i in indices}), sum(not runs[i][1] for i in indices)
        cost = _text_of([(cost, runs[i][1]) for i in indices if (cost := costs[i])])
        known = all(costs[i] or not runs[i][1] for i in indices)
        lines.append(
            f"{task}: {len(indices)} cells of {methods} methods, {done} done, {cost if known else 'no estimate'}"
        )
    return lines


def arm_lines(
    study: "Study", runs: "Sequence[tuple[Settings, float]]", costs: "Sequence[Estimate | None]"
) -> list[str]:
    """A line for each arm of a study; `runs` are settings and the number of cells."""
    lines = []
    for arm, (settings, cells), cost in zip(study.arms, runs, costs, strict=True):
        text = _text_of([(cost, cells)]) if cost else "no estimate"
        lines.append(f"{arm.label} {arm.title}: {cells:.0f} cells of {settings.rounds} rounds, {text}")
    return lines


def _text_of(costs: "Sequence[tuple[Estimate, float]]") -> str:
    """Time, steps and traffic of cells, each with how often it runs."""
    from bench.runs.progress import duration_text

    seconds, steps, sent = (
        sum(getattr(cost, amount) * repeats for cost, repeats in costs) for amount in ("seconds", "steps", "sent")
    )
    work = f", {steps:.2g} steps of clients, {_bytes(sent)} sent" if costs else ""
    return f"about {duration_text(seconds)} of computing{work}"


def sum_lines(
    total: str,
    runs: "Sequence[tuple[Settings, float]]",
    costs: "Sequence[Estimate | None]",
    folder: Path,
    side_by_side: int,
) -> list[str]:
    """Lines for all together: time, memory and disk of so many cells side by side, and what this machine lacks."""
    from bench.runs.progress import duration_text

    estimates = [(cost, repeats) for (_, repeats), cost in zip(runs, costs, strict=True) if cost and repeats]
    if not estimates:
        return [
            f"{total}: " + ("no estimate, see `missing` above" if any(share for _, share in runs) else "nothing to do")
        ]
    memory, gpu, disk = (
        _largest([(getattr(cost, resource), _cells(repeats)) for cost, repeats in estimates], side_by_side)
        for resource in ("memory", "gpu", "disk")
    )
    # Cells that share a GPU are not taken to be faster than one after the other.
    seconds = sum(cost.seconds * repeats for cost, repeats in estimates) / (1 if gpu else side_by_side)
    memory_text = f"{_bytes(memory)} of memory" + (f", {_bytes(gpu)} of the GPU's" if gpu else "")
    left_out = sum(_cells(repeats) for (_, repeats), cost in zip(runs, costs, strict=True) if repeats and not cost)
    return [
        f"{total}: about {duration_text(seconds)}, {memory_text}, at most {_bytes(disk)} of disk for checkpoints",
        _basis([cost.basis for cost, repeats in estimates for _ in range(_cells(repeats))]),
        *(f"missing: {text}" for text in _shortages(memory, gpu, disk, folder, side_by_side)),
        *([f"{left_out} cells are left out: see `missing` above."] if left_out else []),
    ]


def _basis(bases: list[str]) -> str:
    """Say on what the times and bytes of cells rest."""
    measured, scaled = bases.count("measured"), bases.count("scaled")
    if not measured:
        return BASIS.format(basis=ESTIMATED, sent=SENT.format(rest=""))
    basis = MEASURED.format(measured=measured, cells=len(bases))
    basis += SCALED.format(scaled=scaled) * bool(scaled) + REST * (measured + scaled < len(bases))
    sent = "Sent: counted in those rounds" + ("; of the other cells one model each way" * (measured < len(bases)))
    return BASIS.format(basis=basis, sent=f"{sent}.")


def _cells(repeats: float) -> int:
    """A number of cells; a share of one is one."""
    return max(1, round(repeats))


def _largest(amounts: list[tuple[int, int]], places: int) -> int:
    """Sum of the largest amounts that so many places have; each amount is there as often as the second number says."""
    total = 0
    for amount, count in sorted(amounts, reverse=True):
        total += amount * min(count, places)
        places -= min(count, places)
    return total


def _shortages(memory: int, gpu: int, disk: int, folder: Path, side_by_side: int) -> list[str]:
    """One text for each resource of which this machine has too little, with a remedy."""
    from bench.runs.forecast.estimate import memory_here

    if gpu:
        import torch  # here, as it takes seconds

    place = next(place for place in (folder, *folder.resolve().parents) if place.is_dir())
    hint = f"try --jobs {side_by_side // 2}" if side_by_side > 1 else "take fewer clients or a smaller model"
    needs = [
        ("memory, Python's own with it", memory + SHARED + PYTHON * side_by_side, memory_here(), hint),
        ("the GPU's memory", gpu, torch.cuda.mem_get_info()[1] if gpu else 0, hint),
        ("disk", disk, shutil.disk_usage(place).free, "give another --out"),
    ]
    return [
        f"{_bytes(need)} of {resource}; this machine has {_bytes(available)}: {remedy}"
        for resource, need, available, remedy in needs
        if need > available
    ]


def _bytes(count: float) -> str:
    if count >= 1e12:
        return f"{count / 1e12:.1f} TB"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
