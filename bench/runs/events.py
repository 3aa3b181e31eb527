"""Events of a cell while it runs, for whoever listens."""

from dataclasses import dataclass, field

from bench.store.store import CellState


@dataclass(frozen=True)
class Event:
    """A change of a cell's state or progress.

    Attributes:
        cell: the cell's id.
        state: the cell's state after it.
        round: server versions done, of `rounds`.
        figures: accuracies such as `{"gm": 0.81}`.
        text: a reason, or another remark for the progress display.
        warning: a text that the user should see even where no progress is shown.
    """

    cell: str
    state: CellState
    round: int = 0
    rounds: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    text: str = ""
    warning: str = ""
