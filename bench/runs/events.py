"""What happens to a cell while it runs, for whoever listens."""

from dataclasses import dataclass, field

from bench.store.store import CellState


@dataclass(frozen=True)
class Event:
    """One thing that happened to a cell.

    Attributes:
        cell: its id.
        round: server versions done, of `rounds`.
        figures: accuracies such as `{"gm": 0.81}`.
        text: a reason, or what else there is to say.
        warning: what the user should see even where no progress is shown.
    """

    cell: str
    state: CellState
    round: int = 0
    rounds: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    text: str = ""
    warning: str = ""
