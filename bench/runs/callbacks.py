"""Code of the user's that follows cells while they run: `bench.Callback` and the callbacks that ship (docs/python.md).

A callback is called where the user called `bench.run`, with the rows that versions and evaluations left in the cells'
tables. One that asks for it (`in_worker`) is called in the process that trains, where it also sees the server's state.
Neither can change a number: what it is given are copies, and it never stops a cell.
"""

import base64
import contextlib
import copy
import csv
import inspect
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from bench.errors import UserError, in_words
from bench.plugin import is_interactive
from bench.results.cell_names import CELL_COLUMNS, cell_columns, cell_name
from bench.runs.events import Event
from bench.runs.progress import figures_text, headline
from bench.settings import Settings
from bench.store.store import COLUMNS, CellState
from bench.store.tables import read_new

if TYPE_CHECKING:
    import pandas as pd

_SCORED = ("metrics", "scores")
"""Tables with the scores of all clients together."""

_Rows: TypeAlias = "pd.DataFrame | Sequence[Mapping[str, Any]]"


@dataclass(frozen=True)
class Moment:
    """A cell at the moment when a callback is called.

    Attributes:
        cell: the cell's id.
        settings: the cell's settings.
        round: server versions done, of `settings.rounds`.
        state: `running`; at the end `done`, `diverged`, `failed` or `interrupted`.
        rows: after a version its row of `ledger.csv` (bytes, simulated seconds), after an evaluation its rows of
            `metrics.csv` and `scores.csv`, at the end none.
        server: a copy of the server's state by name, where the callback is in the process that trains; else None.
    """

    cell: str
    settings: Settings
    round: int
    state: CellState
    rows: "pd.DataFrame"
    server: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Name of the cell in messages, e.g. `scd digits alpha=0.1 seed=0`."""
        return cell_name(self.settings)

    @property
    def figures(self) -> dict[str, float]:
        """Accuracies `gm` and `pm` on test samples, 0 .. 1, as far as there are any; empty but after an evaluation."""
        return headline(cast(list[dict[str, Any]], self.rows.to_dict("records"))) if "metric" in self.rows else {}


class Callback:
    """Base class of code that follows cells; override what you need.

    After a stop or a crash, the versions since a cell's last checkpoint are computed and shown again, with the same
    rows; cells that were finished before are not shown. An exception is printed once, with the callback's name and the
    cell; the cell goes on without the callback.

    Attributes:
        in_worker: call it in the processes that train, where it sees `Moment.server`. Each cell then has a copy of the
            callback as it was given to `bench.run`, so what it remembers stays there, and what it prints goes to the
            cell's log. Its class must lie in a file, not in a notebook, and with `ray` it is not used; else it is
            called as without `in_worker`.

    Example:
        >>> class Curve(bench.Callback):
        ...     def after_evaluation(self, at):
        ...         print(at.name, at.round, at.figures)
    """

    in_worker: ClassVar[bool] = False

    def after_version(self, at: Moment) -> None:
        """Look at a server version that has just closed."""

    def after_evaluation(self, at: Moment) -> None:
        """Look at the scores of a version; called after `after_version` of that version."""

    def at_end(self, at: Moment) -> None:
        """Look at a cell that has ended, or was stopped."""


class PrintScores(Callback):
    """Print a line for each evaluation: the cell, its round and its accuracies."""

    def after_evaluation(self, at: Moment) -> None:
        print(f"{at.name}: round {at.round}/{at.settings.rounds}: {figures_text(at.figures)}", flush=True)


class CsvScores(Callback):
    """Write the rows of each evaluation of all cells into one file, as they come.

    After a stop it goes on in the same file; an evaluation that stands there already is not written again.

    Args:
        file: a CSV file; its columns are those of `run.metrics`.

    Raises:
        UserError: the file has other columns.
    """

    def __init__(self, file: Path | str) -> None:
        self.file = Path(file)
        self._columns = [*CELL_COLUMNS, *COLUMNS["metrics"]]
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        complete_lines = text[: text.rfind("\n") + 1]
        lines = list(csv.DictReader(io.StringIO(complete_lines)))
        if lines and list(lines[0]) != self._columns:
            raise UserError(f"CsvScores: {self.file} exists and has other columns; name another file")
        if complete_lines != text:  # its writer was killed
            self.file.write_text(complete_lines, encoding="utf-8")
        self._written = {(line["cell"], int(line["round"])) for line in lines}

    def after_evaluation(self, at: Moment) -> None:
        if (at.cell, at.round) in self._written:
            return
        self._written.add((at.cell, at.round))
        rows = at.rows.assign(**cell_columns(at.cell, at.settings))[self._columns]
        new = not self.file.exists() or not self.file.stat().st_size
        with self.file.open("a", encoding="utf-8", newline="") as file:
            file.write(rows.to_csv(index=False, header=new, lineterminator="\n"))


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse objects that are not callbacks.

    Raises:
        UserError: a class stands in place of an object, or something else.
    """
    for callback in callbacks:
        if isinstance(callback, type):
            raise UserError(f"callbacks: give {callback.__name__}() instead of the class {callback.__name__}")
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks: {callback!r} is not a callback: derive its class from bench.Callback")


def pack_callback(callback: Callback) -> str | None:
    """Write a callback as text for the processes that train; None if they cannot have it."""
    kind = type(callback)
    if not kind.in_worker or is_interactive(kind.__module__):
        return None
    try:
        return base64.b64encode(pickle.dumps(callback)).decode()
    except Exception:  # a class inside a function, an open file, and whatever else cannot be pickled
        return None


def unpack_callbacks(texts: Sequence[str]) -> list[Callback]:
    """Read the callbacks that `pack_callback` wrote, in the process that trains."""
    return [pickle.loads(base64.b64decode(text)) for text in texts]


class Calls:
    """Calls the callbacks of one cell; one that raises an exception is not called again.

    Args:
        callbacks: in the order of their calls.
        cell: the cell's id.
        settings: its settings.
        warn: takes the text about an exception.
    """

    def __init__(
        self, callbacks: Sequence[Callback], cell: str, settings: Settings, warn: Callable[[str], None]
    ) -> None:
        self._callbacks = list(callbacks)
        self._cell = cell
        self._settings = settings
        self._warn = warn

    def version(self, version: int, traffic: _Rows, scores: _Rows, server: Mapping[str, Any] | None = None) -> None:
        """Call `after_version` with the version's row of the ledger, and `after_evaluation` if it has scores."""
        if not self._callbacks:
            return
        self._call("after_version", version, "running", _frame("ledger", version, traffic), server)
        if len(scores):
            self._call("after_evaluation", version, "running", _frame("metrics", version, scores), server)

    def end(self, version: int, state: CellState, server: Mapping[str, Any] | None = None) -> None:
        """Call `at_end`."""
        import pandas as pd

        self._call("at_end", version, state, pd.DataFrame(), server)

    def _call(
        self, hook: str, version: int, state: CellState, rows: "pd.DataFrame", server: Mapping[str, Any] | None
    ) -> None:
        for callback in list(self._callbacks):
            if getattr(type(callback), hook) is getattr(Callback, hook):
                continue
            state_copy = None if server is None else {name: _copy(value) for name, value in server.items()}
            moment = Moment(self._cell, self._settings, version, state, rows.copy(), state_copy)
            try:
                with _restore_torch_settings():
                    getattr(callback, hook)(moment)
            except (
                Exception,
                SystemExit,
            ) as error:  # the user's code may raise anything, and the cell's work must not be lost
                self._callbacks.remove(callback)
                name, file = type(callback).__name__, inspect.getsourcefile(type(callback).__dict__[hook])
                self._warn(
                    f"the callback {name} failed in {hook} of {moment.name}, round {version}: {in_words(error, file)}; "
                    "the cell goes on without it"
                )


def _frame(name: str, version: int, rows: _Rows) -> "pd.DataFrame":
    """Rows of a version as they stand in a table."""
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        return rows.reset_index(drop=True)
    return pd.DataFrame([{"round": version, **row} for row in rows], columns=list(COLUMNS[name]))


def _copy(value: Any) -> Any:
    """A copy that shares no memory with the method's state, but for the modules of model values."""
    from torch import Tensor  # here: the process of MLflow's copy needs a callback's class, and no torch

    from bench.params import Params

    match value:
        case Params():
            return Params(value.weights.detach().clone(), value.buffers.detach().clone(), value.spec)
        case Tensor():
            return value.detach().clone()
        case dict():
            return {key: _copy(entry) for key, entry in value.items()}
        case list() | tuple():
            return type(value)([_copy(entry) for entry in value])
    return copy.deepcopy(value)


@contextlib.contextmanager
def _restore_torch_settings() -> Iterator[None]:
    """Restore what a callback may have set for the whole process: threads, dtype, gradients, torch's generator."""
    import torch

    threads, dtype, gradients = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)


class CallbackListener:
    """Calls callbacks in the process that started the run: a listener of events that reads the cells' new rows.

    Args:
        run: the run folder.
        cells: settings by id.
        callbacks: what to call.
        warn: takes the text about an exception.
    """

    def __init__(
        self, run: Path, cells: Mapping[str, Settings], callbacks: Sequence[Callback], warn: Callable[[str], None]
    ) -> None:
        self._cells = cells
        self._run = run
        self._calls = {id: Calls(callbacks, id, settings, warn) for id, settings in cells.items()}
        self._tables = ("ledger", *_SCORED) if any(map(_needs_rows, callbacks)) else ()
        self._rows: dict[str, dict[str, _NewRows]] = {}
        self._shown: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        """Show the rows that are new since the cell's last event."""
        import pandas as pd

        id, calls = event.cell, self._calls[event.cell]
        if id not in self._rows or event.round < self._shown[id]:  # it begins, or another worker goes on with it
            if event.state in ("done", "diverged"):  # finished before
                return
            self._rows[id] = {name: _NewRows(self._run / id, name) for name in self._tables}
            self._shown[id] = event.round
        new = {name: rows.until(self._shown[id], event.round) for name, rows in self._rows[id].items()}
        for version, row in new["ledger"].groupby("round") if new else ():
            scores = [new[name][new[name]["round"] == version] for name in _SCORED if len(new[name])]
            calls.version(int(str(version)), row, pd.concat(scores, ignore_index=True) if scores else ())
        self._shown[id] = event.round
        if event.state not in ("running", "waiting"):
            calls.end(event.round, event.state)
            del self._rows[id]


def _needs_rows(callback: Callback) -> bool:
    return any(
        getattr(type(callback), hook) is not getattr(Callback, hook) for hook in ("after_version", "after_evaluation")
    )


class _NewRows:
    """The rows of a cell's table that were not read before."""

    def __init__(self, folder: Path, name: str) -> None:
        import pandas as pd

        self._folder = folder
        self._name = name
        self._offset = 0
        self._held = pd.DataFrame(columns=list(COLUMNS[name]))

    def until(self, first: int, last: int) -> "pd.DataFrame":
        """Rows of the versions after `first`, up to `last`; those of later ones are held back."""
        import pandas as pd

        if last <= first:
            return self._held.iloc[:0]
        frame, self._offset = read_new(self._folder, self._name, self._offset)
        frame = pd.concat([part for part in (self._held, frame) if len(part)] or [frame], ignore_index=True)
        self._held = frame[frame["round"] > last]
        return frame[(frame["round"] > first) & (frame["round"] <= last)]
