"""`bench.verify`: check that the results of runs can be computed again, from Python."""

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError, refusing_exits
from bench.places import kind_of
from bench.plugin import load_file, loaded_files
from bench.results.pack import unpack
from bench.results.results import load_run

if TYPE_CHECKING:
    from bench.runs.verify.verify import Checked


@refusing_exits()
def verify(
    runs: Path | str | Sequence[Path | str],
    *,
    cells: int = 5,
    seed: int | None = None,
    jobs: int | None = None,
    data_root: Path | str = "data",
) -> "Checked":
    """Check all cells of runs and compute some again, like `bench verify` (docs/verify.md).

    Args:
        runs: run folders, or packed runs; one or several.
        cells: how many cells to compute again, over all runs.
        seed: of the draw of cells; default: a new one.
        jobs: cells side by side; default: one per core.
        data_root: where data files lie.

    Returns:
        The verdicts; `.ok` says whether every check was made and none failed.

    Raises:
        UserError: a folder is not a run, no cell has finished, or data are missing.
    """
    named = [runs] if isinstance(runs, Path | str) else runs
    return check_runs([Path(run) for run in named], cells, seed, jobs, Path(data_root))


def check_runs(
    runs: Sequence[Path],
    cells: int,
    seed: int | None,
    jobs: int | None,
    data_root: Path,
    plugins: tuple[Path, ...] = (),
    *,
    blind: bool = False,
) -> "Checked":
    """Check runs as `verify` does.

    Args:
        plugins: further files that the processes that train load; with `blind`, nothing else loads them.
        blind: train without labels of tests, and score here, where no plug-in may have been loaded.

    Raises:
        UserError: as of `verify`; or an argument is out of range.
    """
    for name, value, least in (("cells", cells, 0), ("jobs", jobs, 1)):
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: should be {least} or more")
    drawn = secrets.randbelow(2**31) if seed is None else seed
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as new:
        for file in () if blind else plugins:
            load_file(file)
        views = [load_run(_folder(run, Path(scratch, str(number)))) for number, run in enumerate(runs)]

        from bench.runs.cell_options import Options
        from bench.runs.verify.judge import Judge  # from here on torch is needed
        from bench.runs.verify.verify import verify as verify_views
        from bench.runs.workers import LocalRunner

        scored = Path(scratch, "scored")
        scored.mkdir()
        judge = Judge(scored, data_root) if blind else None
        runner = LocalRunner(jobs, "auto")
        files = plugins if judge else loaded_files()
        options = Options(cells=runner.sharing, data_root=data_root, plugins=files, blind=blind)
        checked = verify_views(views, cells, drawn, Path(new), options, runner, data_root, judge)
    return replace(
        checked,
        seed=drawn,
        cells=sum(len(view.cells) for view in views),
        unchecked=judge.unchecked if judge else 0,
        names={view.path: run for view, run in zip(views, runs, strict=True)},
    )


def _folder(run: Path, scratch: Path) -> Path:
    """The run's folder; a packed run is unpacked into `scratch`."""
    if kind_of(run) != "a file":
        return run
    unpack(run, scratch)
    return scratch
