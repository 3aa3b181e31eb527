"""The results of a run: its cells and its tables. The figures in them are of `bench/results/figures.py`."""

import base64
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from bench.errors import LISTED_NAMES, UserError, did_you_mean
from bench.places import check_folder, kind_of
from bench.results.cell_names import CELL_COLUMNS, cell_columns, cell_name
from bench.results.figures import figures_of, further_scores
from bench.results.privacy import PROTECTED, Statement, epsilons, privacy_notes
from bench.results.summary import summary, to_html
from bench.settings import RECORDED, Settings
from bench.store import documents
from bench.store.data_record import record_of
from bench.store.documents import first_error, read_json, read_run_file
from bench.store.store import Status, is_unsound, read_status
from bench.store.tables import read_table, read_tables

if TYPE_CHECKING:
    import pandas as pd

    from bench.results.export import Export
    from bench.results.saved_models import KeptModel

FIGURE_COLUMNS = (
    "method",
    "label",
    "dataset",
    "alpha",
    "case",
    "seed",
    "cell",
    "status",
    "protocol",
    "metric",
    "on",
    "mean",
    "selection",
    "round",
    "score",
    "value",
    "derived",
    *(f"epsilon_{kind}" for kind in PROTECTED),
)


@dataclass(frozen=True)
class CellView:
    """One cell of a run, read from its folder."""

    id: str
    label: str
    settings: Settings
    folder: Path
    status: Status

    def table(self, name: str) -> "pd.DataFrame":
        """Read the table `metrics`, `clients`, `ledger`, `scores` or `client_scores` (of `settings.metrics`).

        It is empty where nothing was written.
        """
        return read_table(self.folder, name)

    def hits(self, metric: str = "pm", on: str = "local", round: int | None = None) -> "pd.DataFrame":
        """Tell which test samples the models of a round classified correctly: `client`, `sample` and `correct`.

        Args:
            metric: `gm` or `pm`; a metric that is derived from the other has no samples of its own.
            on: `local`, or `global` (of gm; the client is -1).
            round: number of the round, from 1; None: the last one.

        Returns:
            A row for each test sample of each client; `sample` is its position in the data set. Empty where the cell
            kept none.

        Raises:
            UserError: the table is damaged.
        """
        import pandas as pd

        table, tests = self.table("hits"), documents.read(self.folder, "tests.json")
        table = table[(table["metric"] == metric) & (table["on"] == on)]
        table = table[table["round"] == (table["round"].max() if round is None else round)]
        if tests is None or not len(table):
            return pd.DataFrame(columns=["client", "sample", "correct"])
        tests = record_of(tests, int(table["round"].iloc[0]))
        at = np.frombuffer(base64.b64decode(tests[on]), "<i4").astype(np.int64)
        try:
            bits = np.frombuffer(base64.b64decode(table["bits"].iloc[0], validate=True), np.uint8)
        except ValueError as error:
            raise UserError(f"{self.folder}/hits.csv is damaged ({error})") from None
        clients = np.repeat(tests["clients"], tests["samples"]) if on == "local" else np.full(len(at), -1)
        correct = np.unpackbits(bits, count=len(at)).astype(bool)
        return pd.DataFrame({"client": clients, "sample": at, "correct": correct})

    def model(self, client: int | None = None, data_root: Path | str = "data") -> "KeptModel":
        """Load the generic model, or a client's personalized one, as a module that takes raw samples.

        It is the model of the reported round with `--keep best`, of the last round with `--keep all`.

        Raises:
            UserError: the cell is not done, kept no such model, or its data is not there.
        """
        from bench.results.saved_models import SavedModels

        return SavedModels(self, data_root).load(client)

    def export(self, out: Path | str, data_root: Path | str = "data") -> "Export":
        """Write the models as files that predict anywhere: one of each client, and the generic one (docs/export.md).

        Args:
            out: the folder, new or empty.
            data_root: where data files lie.

        Returns:
            `models`, the files by the names of the sites and `generic`, and `notes`, what is to be known of them.

        Raises:
            UserError: the cell is not done, kept no models, its data are not there, or its models cannot be exported.
        """
        from bench.results.export import export_cell

        return export_cell(self, Path(out), Path(data_root))

    @property
    def privacy(self) -> list[Statement]:
        """The worth of the cell's noise and all that it does not cover; empty without noise, or if it is not done."""
        if "privacy.json" not in self.status.checksums:
            return []
        statements: list[Statement] = documents.read(self.folder, "privacy.json")["statements"]
        return statements

    @property
    def name(self) -> str:
        """The name of the cell, e.g. `scd digits alpha=0.1 seed=0`."""
        return cell_name(self.settings)

    def __repr__(self) -> str:
        return f"<cell {self.id} {self.name}: {self.status.state}, {self.status.rounds}/{self.settings.rounds} rounds>"


@dataclass(frozen=True)
class RunView:
    """A run folder: the content of `run.json` and its cells in the grid's order."""

    path: Path
    info: dict[str, Any]
    cells: list[CellView]

    @property
    def results(self) -> "pd.DataFrame":
        """The rows of `scores` that are of accuracy: one per cell and figure."""
        return self.scores("accuracy")

    def scores(self, metric: str | None = None) -> "pd.DataFrame":
        """The one tidy table: a row per cell, figure and score, as `tidy` has it; read again at every use.

        Args:
            metric: one of them, such as `auroc`; None: accuracy, loss and all others.

        Raises:
            UserError: no cell of the run has that score.
        """
        return tidy(self.path, metric)

    def _repr_html_(self) -> str:
        """The table that a notebook shows: accuracies in percent by label and task, as `bench results` prints them."""
        return to_html(self.path, self.results, self.privacy_notes)

    def __repr__(self) -> str:
        """The folder, how many cells are in which state, and the results in short."""
        states = Counter(cell.status.state for cell in self.cells)
        counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
        tables = [text for title, table in summary(self.results) for text in (title, table.to_string(max_rows=8))]
        return "\n".join([f"<run {self.path}: {len(self.cells)} cells, {counts}>", *tables, *self.privacy_notes])

    @property
    def privacy_notes(self) -> list[str]:
        """The meaning of the epsilons in the results, and all that they do not cover; empty without noise."""
        return privacy_notes((cell.label, cell.privacy) for cell in self.cells)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """The curves: `metrics.csv` of all cells, with whose they are in front (`CELL_COLUMNS`), and below it the
        further scores (`scores.csv`)."""
        import pandas as pd

        recorded, further = self._all("metrics"), self._all("scores")
        return pd.concat([recorded, further], ignore_index=True) if len(further) else recorded

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """The scores of clients: `clients.csv` of all cells, with whose they are in front, and a column for each
        further score (`client_scores.csv`)."""
        clients, further = self._all("clients"), self._all("client_scores")
        if not len(further):
            return clients
        keys = ["label", "cell", "round", "metric", "client", "split"]
        wide = further.pivot(index=keys, columns="quantity", values="value").rename_axis(columns=None)
        return clients.merge(wide.reset_index(), on=keys, how="left")

    @cached_property
    def evaluated(self) -> "pd.DataFrame":
        """The reported models on further tests, named in the column `split`: `evaluated.csv` of all cells, with whose
        they are in front; `client` is -1 in rows of means and of all samples together."""
        return self._all("evaluated")

    @cached_property
    def ledger(self) -> "pd.DataFrame":
        """Traffic and simulated time by version: `ledger.csv` of all cells, with whose they are in front."""
        return self._all("ledger")

    def _all(self, name: str) -> "pd.DataFrame":
        """A table of all cells; a cell that has two labels stands in it under each of them."""
        import pandas as pd

        whole, sizes = read_tables((cell.folder for cell in self.cells), name)
        known = pd.DataFrame(
            [{**cell_columns(cell.id, cell.settings), "label": cell.label} for cell in self.cells],
            columns=list(CELL_COLUMNS),
        )
        known = known.astype({"alpha": float, "seed": int})
        return pd.concat([known.loc[np.repeat(known.index, sizes)].reset_index(drop=True), whole], axis=1)


def load_run(run: Path | str) -> RunView:
    """Read a run folder. A cell whose files are damaged or another cell's is `interrupted`, with the reason.

    Raises:
        UserError: the folder holds no run, its `run.json` is damaged, or another version of pFLeague wrote it.
    """
    run = Path(run)
    kind = kind_of(run)
    if kind == "a file":
        raise UserError(f"{run} is a file, not a run folder; `bench unpack {run} FOLDER` makes one of a packed run")
    if not kind:
        raise UserError(f"{run} is not a run: there is no such folder.{_runs_near(run)}")
    info = read_run_file(check_folder(run, "run folder"))
    if info is None:
        raise UserError(f"{run} is not a run: it has no run.json.{_runs_near(run)}")
    cells = []
    for entry in info["cells"]:
        try:
            settings = Settings(**entry["settings"])
        except ValidationError as error:
            text = first_error(error)
            raise UserError(f"{run}/run.json: cell {entry['id']} was written by another version: {text}") from None
        folder = run / entry["id"]
        cells.append(CellView(entry["id"], entry["label"], settings, folder, read_status(folder, settings)))
    return RunView(run, info, cells)


def damaged(cells: Iterable[CellView]) -> list[str]:
    """Say of each cell whose files are damaged, so that no result counts it, which it is and why: a line each."""
    unsound = {cell.id: cell for cell in cells if is_unsound(cell.status)}
    return [f"damaged and left out: {id}  {cell.name}: {cell.status.reason}" for id, cell in unsound.items()]


def _runs_near(run: Path) -> str:
    """Name the run folders inside a folder that is none, or the most similar one beside it."""
    inside = [str(file.parent) for file in sorted(run.glob("*/run.json"))]
    if inside:
        return f" Runs in it: {', '.join(inside[:LISTED_NAMES])}"
    beside = [str(file.parent) for file in run.parent.glob("*/run.json") if file.parent != run]
    return did_you_mean(str(run), beside) or " Give the folder that `bench run` printed."


def other_cells(run: Path) -> list[CellView]:
    """Cells that lie in a run folder and are not in its `run.json`: of earlier settings, code or data.

    Raises:
        UserError: the folder holds no run.
    """
    current = {cell.id for cell in load_run(run).cells}
    cells = []
    for file in sorted(run.glob("*/settings.json")):
        name = file.parent.name
        if name not in current and not file.parent.is_symlink():
            try:
                settings = Settings(**read_json(file))
            except (UserError, ValidationError, TypeError):
                continue  # written by another version, or damaged: nobody can say what it was
            cells.append(CellView(file.parent.name, settings.name, settings, file.parent, read_status(file.parent)))
    return cells


def tidy(run: Path | RunView, quantity: str | None = "accuracy") -> "pd.DataFrame":
    """One row per cell and figure (accuracies in 0 .. 1); a cell that is not done has one row without a figure.

    Columns: `FIGURE_COLUMNS`. `round` is the round the value is from, `derived` whether the metric follows from SCD's
    Remark 4.1 instead of the method itself. `epsilon_client` and `epsilon_sample` are what noise is worth (nan: there
    is none, inf: it is 0).

    Args:
        run: the run.
        quantity: the score, or None for all that cells have; rounds are chosen as for accuracies. A value is nan where
            the tests do not define it.

    Raises:
        UserError: no cell that is done has the score.
    """
    import pandas as pd

    view = run if isinstance(run, RunView) else load_run(run)
    done = [cell for cell in view.cells if cell.status.state == "done"]
    names = [*RECORDED, *further_scores(done)] if quantity != "accuracy" else []
    figures = {name: figures_of(done, name) for name in (names if quantity is None else [quantity])}
    if done and names and not any(map(any, map(dict.values, figures.values()))):
        hint = did_you_mean(str(quantity), names) or f" It has {', '.join(names)}"
        raise UserError(f"{view.path}: no cell has the metric {quantity!r}.{hint}")
    rows = [
        row
        for cell in view.cells
        for row in _rows(cell, [f | {"score": name} for name, of in figures.items() for f in of.get(cell.id, ())])
    ]
    return pd.DataFrame(rows, columns=list(FIGURE_COLUMNS)).astype({"alpha": float, "value": float, "round": "Int64"})


def _rows(cell: CellView, figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    settings = cell.settings
    common = {
        "method": settings.method,
        **cell_columns(cell.id, settings),
        "label": cell.label,
        "status": cell.status.state,
        "protocol": settings.protocol,
        **{f"epsilon_{kind}": value for kind, value in epsilons(cell.privacy).items()},
    }
    nothing: dict[str, Any] = {"metric": "", "on": "", "mean": "", "selection": "", "round": None, "score": ""}
    nothing |= {"value": None, "derived": False}
    return [{**common, **figure} for figure in figures or [nothing]]
