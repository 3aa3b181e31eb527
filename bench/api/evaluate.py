"""`bench.evaluate`: kept models of a run on further tests, from Python."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bench.api import refuse_text
from bench.config.validation import complete_setting, shown
from bench.errors import UserError, refusing_exits
from bench.federation import cell_data
from bench.plugin import METRICS
from bench.results.results import CellView, RunView, damaged, load_run
from bench.runs.cell_options import check_device_name
from bench.runs.plan import select
from bench.settings import FileTest, FurtherTest, KindOfTest, Settings
from bench.store.documents import first_error
from bench.store.store import BusyError


@refusing_exits()
def evaluate(
    run: Path | str,
    *,
    tests: Sequence[str | Mapping[str, Any]] = (),
    metrics: Sequence[str] = (),
    only: str | Sequence[str] = (),
    device: str = "auto",
    data_root: Path | str = "data",
    quiet: bool = False,
) -> RunView:
    """Score the kept models of finished cells on further tests, like `bench evaluate`; nothing is trained.

    Rows that are there already are not computed again, and no table of a cell changes.

    Args:
        run: a run folder; an unpacked run of somebody else, for instance.
        tests: as in a grid, e.g. `["global", {"name": "corrupted", "severity": 3}]`; empty: those of the run's grid.
        metrics: scores beside accuracy and loss; empty: those of the run's grid.
        only: evaluate these cells only, e.g. `method=scd,seed=0`, or several such texts.
        device: `auto`, `cpu` or `cuda`.
        data_root: where data files lie.
        quiet: no progress.

    Returns:
        The run folder's view; `.evaluated` has the rows.

    Raises:
        UserError: the folder is not a run, no cell that is done kept its models, their data are missing, or an argument
            cannot be.
    """
    from bench.results.saved_models import has_reported  # here, as it takes torch

    refuse_text(tests=tests, metrics=metrics)  # type: ignore[arg-type]
    check_device_name(device)
    asked = _tests(tests)
    for name in metrics:
        METRICS.declaration(name)
    view = load_run(run)
    cells = chosen_cells(view, only)
    for text in damaged(cells):
        print(text, file=sys.stderr)
    done = [cell for cell in cells if cell.status.state == "done"]
    without = [cell for cell in done if not has_reported(cell.folder, cell.settings)]
    if not done or len(without) == len(done):
        raise UserError(
            f"{run}: none of {len(done)} finished cells kept the models of its reported round; run them again with "
            "--fresh --keep best"
        )

    from bench.results.further_tests import evaluate_cell  # here, as it takes torch
    from bench.runs.cell_options import choose_device

    said: set[str] = set()
    for cell in (cell for cell in done if cell not in without):
        of_cell = asked or cell.settings.further_tests
        scores = tuple(metrics) or cell.settings.further_metrics
        if not (of_cell or scores):
            raise UserError(f"{run}: its grid asks for no further tests and scores; name some by --tests and --metrics")
        for note in () if quiet else _notes(cell.settings, of_cell, Path(data_root), said):
            print(f"note: {note}", file=sys.stderr)
        try:
            count = evaluate_cell(cell, of_cell, scores, Path(data_root), choose_device(device))
        except BusyError as error:
            raise UserError(f"{error}: stop it first") from None
        if not quiet:
            print(f"{cell.id}  {cell.name}: {count} new rows", file=sys.stderr, flush=True)
    if without and not quiet:
        text = (
            f"note: {len(without)} of {len(done)} finished cells kept no models of their reported rounds and are left "
        )
        print(f"{text}out: run them again with --fresh --keep best", file=sys.stderr)
    return load_run(run)


def chosen_cells(view: RunView, only: str | Sequence[str]) -> list[CellView]:
    """The cells of a run that `only` means, each once."""
    wanted = {id(settings) for settings in select([cell.settings for cell in view.cells], only)} if only else None
    return list({cell.id: cell for cell in view.cells if wanted is None or id(cell.settings) in wanted}.values())


def _notes(settings: Settings, tests: Sequence[FurtherTest], data_root: Path, said: set[str]) -> tuple[str, ...]:
    """Notes on the files of a cell's further tests, unless they were said of another cell."""
    key = cell_data.tested(settings, tests)
    if key in said or not any(isinstance(test, FileTest) for test in tests):
        return ()
    said.add(key)
    dataset = cell_data.load_dataset(settings, data_root)
    return cell_data.check_tests(tests, dataset, cell_data.load_partition(settings, dataset))


_KINDS: TypeAdapter[FurtherTest] = TypeAdapter(KindOfTest)


def _tests(tests: Sequence[str | Mapping[str, Any]]) -> tuple[FurtherTest, ...]:
    """The tests that a user named.

    Raises:
        UserError: there is no such test, or it has other options.
    """
    checked = []
    for test in tests:
        try:
            checked.append(_KINDS.validate_python({"name": test} if isinstance(test, str) else test))
        except ValidationError as error:
            raise UserError(f"tests: {shown(test)}: {first_error(error)}") from None
    return tuple(complete_setting("tests", tuple(checked)))
