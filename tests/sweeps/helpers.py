"""A small sweep."""

from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from bench.federation.cell_identity import Identities
from bench.runs.cell_options import Options
from bench.runs.run_folder import write_run
from bench.runs.workers import LocalRunner
from sweeps.run import Tuner, open_studies
from sweeps.study import Study

OPTIONS = Options(device="cpu", executor="sequential")


IDENTITIES = Identities(Path("data"))


def run(
    study: Study, folder: Path, timeout: float | None = None, options: Options = OPTIONS
) -> tuple[Tuner, dict[str, Any], list[str]]:
    """Tune with one worker process, as the command does."""
    folder.mkdir(parents=True, exist_ok=True)
    studies = open_studies(study, f"sqlite:///{folder}/study.db")
    write_run(folder, study.described_grid, [])
    said: list[str] = []
    tuner = Tuner(study, studies, folder, options, IDENTITIES, timeout, said.append)
    assert tuner.run(LocalRunner(1, "cpu"))
    return tuner, studies, said


def trials(study: Study, folder: Path) -> list[FrozenTrial]:
    """All trials, arm by arm."""
    studies = open_studies(study, f"sqlite:///{folder}/study.db")
    return [trial for arm in study.arms for trial in studies[arm.name].get_trials(deepcopy=False)]
