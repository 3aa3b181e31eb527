"""A session with a study: its methods are tuned, the chosen settings run on fresh seeds, and the report is made."""

import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.listed import write_listed
from bench.errors import UserError
from bench.federation.cell_identity import Identities
from bench.results.cell_names import cell_name
from bench.results.pack import TUNING
from bench.results.remarks import fallbacks, unused_fallbacks
from bench.results.results import load_run
from bench.runs.cell_runner import CellRunner
from bench.runs.options import SessionOptions
from bench.runs.plan import PlannedCell, plan, planned_remarks
from bench.runs.progress import printer
from bench.runs.run_folder import STUDY, call_text, write_run
from bench.runs.session import Session, Stopped, print_notes, work
from bench.runs.tracking import DRAIN_SECONDS, Tracking, shown
from bench.store import inside, store
from reports.page.page import write_report
from reports.tables.table import Table, to_csv
from sweeps.cells import data_digests, forget_unscored, list_cells, trial_cells, with_data
from sweeps.fair import (
    budget_table,
    check_blind,
    choose,
    chosen_cells,
    further_cells,
    reported_cells,
    trials_table,
)
from sweeps.report import sections
from sweeps.run import Tuner, open_studies
from sweeps.storage import storage_problems, study_storage
from sweeps.study import Study

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class StudyEnd:
    """The end of a session with a study.

    Attributes:
        failed: whether a cell failed; the next call tries it again.
        budget: trials and chosen settings; None: other workers still have trials, and the last one reports.
        page: the report's, where one was wanted.
    """

    failed: bool
    budget: Table | None = None
    page: Path | None = None


def open_session(study: Study, out: Path | str | None, options: SessionOptions, command: str | None = None) -> Session:
    """Open a run folder for a study.

    Raises:
        UserError: the folder cannot be used.
    """
    grid = replace(study.described_grid, cells=[cell for arm in study.arms for cell in arm.cells])
    return Session(grid, out, options, kind="study", command=command)


def run_study(
    session: Session,
    study: Study,
    runner: CellRunner,
    *,
    name: str,
    overrides: list[str],
    storage: str | None = None,
    timeout: float | None = None,
    least: int = 0,
    page: bool = True,
) -> StudyEnd:
    """Tune by validation accuracy, run the best settings on new seeds, and report.

    Args:
        session: of `open_session`.
        study: what is tuned.
        runner: runs the cells.
        name, overrides: where the study was read from, for `bench report`.
        storage: Optuna's; None: `study.db` in the run folder.
        timeout: seconds after which no trial is begun.
        least: trials of each method and task that are begun even then.
        page: whether the report's page is made.

    Raises:
        UserError: a cell cannot run here, or the storage cannot be used.
        Stopped: the user stopped it.
    """
    if timeout is not None and timeout < 0:
        raise UserError(f"--timeout {timeout:g}: should be 0 or more")
    folder, quiet, mirror = session.folder, session.options.quiet, session.mirror
    runner.threads(None)  # Ray's nodes are asked for so many cores
    planned = session.plan(runner)  # which finds out how many cells share a GPU
    options = session.cell_options(runner, None)
    if not quiet:
        print_notes(planned_remarks(planned))
    check_blind(study, session.options.data_root)
    identities = Identities(session.options.data_root, download=session.options.download)
    digests = data_digests(study, identities)
    study = with_data(study, digests)
    address = storage or study_storage(folder)
    described = {  # with which `bench report` finds Optuna's studies again
        "file": name, "stem": study.name, "source": study.source, "overrides": overrides, "data": digests,
        "trials": study.arms[0].trials, "storage": storage and shown(storage),
    }  # fmt: skip
    with storage_problems(address):
        folder.mkdir(parents=True, exist_ok=True)
        with store.locked(folder, wait=True):
            inside.check_place(folder, folder / "study.db")
            studies = open_studies(study, address)
            store.write_json(folder / STUDY, described)
        write_run(
            folder, study.described_grid, _cells_so_far(study, studies, folder, identities),
            session.command or call_text("bench.sweep"), study.report_draws,
        )  # fmt: skip
        with ExitStack() as at_end:
            if mirror:
                at_end.callback(Tracking(folder, mirror).finish, DRAIN_SECONDS)
            tuner = Tuner(study, studies, folder, options, identities, timeout, printer(quiet=quiet), least)
            completed = tuner.run(runner)
            for reason in tuner.failed:
                print(reason, file=sys.stderr)
            if not completed:
                raise Stopped
            if elsewhere := tuner.elsewhere():
                print(f"other workers still run {elsewhere} trials; the last one writes the report", file=sys.stderr)
                return StudyEnd(bool(tuner.failed))
            reported, failed = _finals(session, study, studies, runner, identities)
        best, about = folder / "best.yaml", f"The settings that the study {study.name} chose."
        store.write_text(best, write_listed(f"{study.name}_best", about, [cell.settings for cell in reported]))
        print(f"the chosen settings as a grid: bench run --grid {shlex.quote(str(best))}", file=sys.stderr)
        budget, file = _report(folder, study, studies, identities, page=page)
    if not quiet:
        cells = load_run(folder).cells
        print_notes([*unused_fallbacks(session.options.allow_fallback, cells), *fallbacks(cells)])
    return StudyEnd(bool(tuner.failed) or failed, budget, file)


def _cells_so_far(
    study: Study, studies: "dict[str, optuna.Study]", folder: Path, identities: Identities
) -> list[PlannedCell]:
    """The cells of all trials, and of the finalists' and reported runs that an earlier command has begun."""
    choices = choose(study, studies, folder, identities.of)
    further = [PlannedCell(identities.of(cell), cell) for cell in (*further_cells(choices), *chosen_cells(choices))]
    return [*trial_cells(study, studies), *(cell for cell in further if (folder / cell.id).is_dir())]


def _finals(
    session: Session, study: Study, studies: "dict[str, optuna.Study]", runner: CellRunner, identities: Identities
) -> tuple[list[PlannedCell], bool]:
    """Run the finalists again and then the chosen settings; returns the cells of these, and whether any cell failed.

    What an earlier command reported stays in `run.json` until it is known what is reported now.
    """
    folder, cells, failed = session.folder, list[PlannedCell](), False
    for reported in (False, True):  # the results of the first cells decide which the second are
        choices, again = choose(study, studies, folder, identities.of), cells
        wanted = reported_cells(study, choices) if reported else further_cells(choices)
        cells = plan(wanted, session.options.data_root, download=session.options.download)
        listed = [*trial_cells(study, studies), *again, *cells] if reported else cells
        with store.locked(folder, wait=True):
            list_cells(folder, listed, others=not reported)
        forget_unscored(folder, cells)
        quiet = session.options.quiet
        if cells and not work(folder, cells, session.cell_options(runner, len(cells)), runner, quiet=quiet):
            raise Stopped
        for cell in cells:
            status = store.read_status(folder / cell.id)
            if status.state == "failed":
                failed = True
                print(f"{cell_name(cell.settings)}: failed: {status.reason}", file=sys.stderr)
                print(f"  bench log {shlex.quote(str(folder))} {cell.id}", file=sys.stderr)
    return cells, failed


def _report(
    folder: Path, study: Study, studies: "dict[str, optuna.Study]", identities: Identities, *, page: bool
) -> tuple[Table, Path | None]:
    """Write the report's page, or only the tables that a packed run has; returns the budgets and the page."""
    choices = choose(study, studies, folder, identities.of)
    budget = budget_table(study, choices)
    if page:
        return budget, write_report([folder], extra=sections(study, studies, folder), tuned=study.metrics)
    inside.make_folder(folder, (folder / TUNING).parent)
    for table in (budget, *(trials_table(choice, f"trials_{at}") for at, choice in enumerate(choices))):
        store.write_text((folder / TUNING).with_stem(table.id), to_csv(table))
    return budget, None
