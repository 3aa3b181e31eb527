"""`bench.run`: a session with a grid, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.api import refuse_text, run_name, with_name
from bench.config.grid import Grid, grid_of, load_grid
from bench.errors import UserError, refusing_exits
from bench.method import METHODS, Method
from bench.results.results import RunView, load_run
from bench.runs.callbacks import Callback
from bench.runs.cell_options import Keep
from bench.runs.cell_runner import CellRunner
from bench.runs.options import SessionOptions
from bench.runs.session import Session
from bench.runs.workers import LocalRunner
from bench.settings import Executor, Settings


@refusing_exits()
def run(
    grid: Grid | Settings | Sequence[Settings] | Mapping[str, Any] | str | Path,
    out: Path | str | None = None,
    *,
    methods: Sequence[type[Method]] = (),
    callbacks: Sequence[Callback] = (),
    overrides: Sequence[str] = (),
    only: str | Sequence[str] = (),
    jobs: int | None = None,
    device: str = "auto",
    ray: str | None = None,
    cpus_per_cell: float | None = None,
    gpus_per_cell: float | None = None,
    devices_per_cell: int | None = None,
    executor: Executor = "auto",
    allow_fallback: Sequence[str] = (),
    data_root: Path | str = "data",
    download: bool = False,
    fresh: bool = False,
    take_over: bool = False,
    checkpoint_seconds: float = 300.0,
    keep: Keep = "none",
    tracking_uri: str | None = None,
    tracking: bool | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> RunView:
    """Run a grid from Python, like `bench run`: finished cells are skipped, half-done ones go on.

    In a script, call it under `if __name__ == "__main__":`, as workers are processes of their own.

    Args:
        grid: a grid file, the name of a built-in grid, the content of a grid file as a dictionary, what `load_grid`
            returned, or the `Settings` of one cell or of several.
        out: the run folder; default: `runs/<grid name>`. A grid without a name has the folder's.
        methods: classes that the notebook or script defines, or that are registered. Each is a method of its name in
            lower case, which the grid may mention with hyperparameters; if it does not, the method is run beside the
            grid's.
        callbacks: what follows the cells (`bench.Callback`).
        overrides: `key=value` each, to change a setting or an axis of the grid, as `--set`.
        only: run these cells only, e.g. `method=scd,seed=0`, or several such texts.
        jobs: cells side by side; default: one per core on a CPU, one on a GPU.
        device: `auto`, `cpu` or `cuda`.
        ray: run the cells on a Ray cluster: `auto`, `local` or `HOST:PORT`.
        cpus_per_cell: with `ray`, cores of a cell.
        gpus_per_cell: with `ray`, GPUs of a cell, or a share of one.
        devices_per_cell: with `ray`, devices that share the clients of a cell.
        executor: how clients are trained: `auto`, `sequential`, `cohort` or `debug`.
        allow_fallback: losses and backends that may fail on a GPU, where the cell then goes on tens of times slower.
        data_root: where data files lie.
        download: fetch what is missing.
        fresh: forget the cells' earlier results.
        take_over: use the folder of another grid; its cells stay there, and are no longer shown.
        checkpoint_seconds: least time between two checkpoints.
        keep: what `cell.model()` finds afterwards: `best`, models of the reported round; `all`, of the last one;
            `server`, the generic one of the last round.
        tracking: mirror the run in MLflow; default: as the variable `BENCH_TRACKING` says, else yes.
        tracking_uri: MLflow's store; default: `MLFLOW_TRACKING_URI`, else `mlflow.db` in the run folder.
        quiet: no progress, notes and warnings.
        verbose: a line for each round.

    Returns:
        The run folder's view, with its results as pandas frames.

    Raises:
        UserError: a problem in the grid or its data, an option that cannot be, or the folder is another grid's.
        KeyboardInterrupt: the user stopped it; another call goes on.

    Examples:
        >>> import bench
        >>> grid = {"methods": ["fedavg", "local"], "datasets": ["digits"], "alphas": [0.5], "seeds": [0],
        ...         "clients": 5, "rounds": 2, "model": "logistic"}
        >>> run = bench.run(grid, out="runs/first", tracking=False, quiet=True)
        >>> [(cell.name, cell.status.state) for cell in run.cells]
        [('fedavg digits alpha=0.5 seed=0', 'done'), ('local digits alpha=0.5 seed=0', 'done')]
        >>> curves = run.metrics.query("metric == 'gm' and quantity == 'accuracy' and split == 'test'")
        >>> sorted(curves["round"].unique().tolist())
        [1, 2]
    """
    refuse_text(overrides=overrides, allow_fallback=allow_fallback)
    options = SessionOptions.of(locals())
    loaded = _grid(grid, out, overrides, [_method(kind) for kind in methods])
    session = Session(loaded, out, options, only=only, take_over=take_over)
    session.run(choose_runner(options), fresh=fresh, callbacks=callbacks)
    return load_run(session.folder)


def choose_runner(options: SessionOptions) -> CellRunner:
    """Choose the runner that the options ask for: processes of this machine, or a Ray cluster.

    Raises:
        UserError: there is no such device or cluster, or Ray is not installed.
    """
    if options.ray is None:
        return LocalRunner(options.jobs, options.device)
    from bench.cluster.connect import connect

    connect(options.ray)  # before the next import, because it reports a missing Ray

    from bench.cluster.ray_runner import RayRunner

    cpus, gpus, devices = options.cpus_per_cell, options.gpus_per_cell, options.devices_per_cell
    return RayRunner(options.jobs, options.device, cpus, gpus, devices or 1)


def _method(kind: type[Method]) -> str:
    """The name of a method's class, registered if it was not."""
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise UserError(f"methods: {kind!r} is none: give classes that are derived from bench.method.Method")
    return METHODS.name_of(kind)


def _grid(grid: Any, out: Path | str | None, overrides: Sequence[str], methods: Sequence[str]) -> Grid:
    """The grid that a user gave in one of many forms."""
    if isinstance(grid, str | Path):
        return load_grid(grid, overrides, methods)
    if isinstance(grid, Mapping):
        return load_grid(with_name(grid, "grid", out), overrides, methods)
    if overrides:
        raise UserError("overrides: they are for a grid from a file or a dictionary, and this one is expanded already")
    cells = [grid] if isinstance(grid, Settings) else grid
    expanded = grid if isinstance(grid, Grid) else grid_of(cells, run_name("grid", out))
    if left := set(methods) - {cell.method for cell in expanded.cells}:
        raise UserError(f"methods: no cell of the grid is of {', '.join(sorted(left))}, and it is expanded already")
    return expanded
