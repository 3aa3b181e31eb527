"""`bench.sweep`: a session with a study, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.api import refuse_text, with_name
from bench.api.run import choose_runner
from bench.errors import refusing_exits
from bench.results.results import RunView, load_run
from bench.runs.options import SessionOptions
from bench.settings import Executor
from sweeps.session import open_session, run_study
from sweeps.study_reader import load_study


@refusing_exits()
def sweep(
    study: Mapping[str, Any] | str | Path,
    out: Path | str | None = None,
    *,
    overrides: Sequence[str] = (),
    trials: int | None = None,
    timeout: float | None = None,
    jobs: int | None = None,
    storage: str | None = None,
    device: str = "auto",
    ray: str | None = None,
    cpus_per_cell: float | None = None,
    gpus_per_cell: float | None = None,
    devices_per_cell: int | None = None,
    executor: Executor = "auto",
    allow_fallback: Sequence[str] = (),
    data_root: Path | str = "data",
    download: bool = False,
    checkpoint_seconds: float = 300.0,
    tracking_uri: str | None = None,
    tracking: bool | None = None,
    page: bool = True,
    quiet: bool = False,
) -> RunView:
    """Tune the methods of a study from Python, like `bench sweep`; another call goes on where one was stopped.

    Args:
        study: a study file, the name of a built-in study, or the content of a study file as a dictionary.
        out: the run folder; default: `runs/<study name>`. A study without a name has the folder's.
        overrides: `key=value` each, to change a key of the study or of its grid, as `--set`.
        trials: for each method and task, those of earlier calls included.
        timeout: seconds after which no trial is begun.
        storage: Optuna's storage; default: `study.db` in the run folder.
        page: make the report's page at the end.

    All other arguments are those of `bench.run`.

    Returns:
        The run folder's view: the cells of trials and of the reported settings.

    Raises:
        UserError: a problem in the study or its data, an option that cannot be, or the folder is another's.
        KeyboardInterrupt: the user stopped it; another call goes on.
    """
    refuse_text(overrides=overrides, allow_fallback=allow_fallback)
    options = SessionOptions.of(locals())
    named = with_name(study, "study", out) if isinstance(study, Mapping) else str(study)
    loaded = load_study(named, list(overrides), trials)
    session = open_session(loaded, out, options)
    run_study(
        session,
        loaded,
        choose_runner(options),
        name=loaded.name if isinstance(study, Mapping) else str(study),
        overrides=list(overrides),
        storage=storage,
        timeout=timeout,
        page=page,
    )
    return load_run(session.folder)
