"""Progress of a run for its user: a live display in a terminal, plain lines elsewhere, or nothing."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from bench.runs.events import Event
from bench.settings import MAIN_MEANS

LINE_SECONDS = 5.0
"""Least seconds between two plain lines of one running cell."""

QUIET_SECONDS = 2.0
"""Seconds after which a line says what a command is doing."""


def printer(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints a line for the user at once; with `quiet` one that prints nothing."""
    return (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))


@contextmanager
def patience(text: str, *, quiet: bool) -> Iterator[None]:
    """Print `text` where the block takes longer than `QUIET_SECONDS`."""
    timer = threading.Timer(QUIET_SECONDS, print, [text], {"file": sys.stderr, "flush": True})
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def steps(command: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes the step at which the block is; in a terminal a line shows it until the block ends.

    Args:
        command: the beginning of the line.
    """
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(command) as line:
        yield lambda text: line.update(Text(f"{command}: {text}"))


class Reporter(AbstractContextManager["Reporter"]):
    """Counts rounds and cells and prints nothing (`--quiet`); its subclasses print.

    Args:
        names: names of the cells to run, by id.
        rounds: numbers of their rounds, by id.
    """

    def __init__(self, names: dict[str, str], rounds: dict[str, int]) -> None:
        self.names = names
        self.rounds = rounds
        self.done_rounds: dict[str, int] = {}
        self.first_round: dict[str, int] = {}
        self.finished: set[str] = set()
        self.start: float | None = None

    def __exit__(self, *_: object) -> None:
        return None

    def event(self, event: Event) -> None:
        """Take note of an event and show it."""
        if self.start is None:  # workers spend seconds on imports before the first cell
            self.start = time.monotonic()
        self.first_round.setdefault(event.cell, event.round)
        self.done_rounds[event.cell] = event.round
        if event.state in ("done", "failed", "diverged"):  # one that was interrupted has rounds left
            self.finished.add(event.cell)
        self.show(event)

    def show(self, event: Event) -> None:
        """Print an event; this class prints nothing."""

    def time_left(self) -> str:
        """Text on the time left, from the rounds done since this run began; empty before the first of them."""
        done = sum(self.done_rounds[cell] - first for cell, first in self.first_round.items())
        left = sum(
            rounds - self.done_rounds.get(cell, 0) for cell, rounds in self.rounds.items() if cell not in self.finished
        )
        if self.start is None or not done or not left:
            return ""
        return f"about {duration_text((time.monotonic() - self.start) * left / done)} left"


class PlainReporter(Reporter):
    """Prints a line to stderr when a cell ends, and every few seconds for each cell that runs."""

    def __init__(self, names: dict[str, str], rounds: dict[str, int], *, verbose: bool = False) -> None:
        super().__init__(names, rounds)
        self._verbose = verbose
        self._last: dict[str, float] = {}

    def show(self, event: Event) -> None:
        now = time.monotonic()
        last = self._last.setdefault(event.cell, now)
        if event.state == "running" and not self._verbose and now - last < LINE_SECONDS:
            return
        self._last[event.cell] = now
        parts = [
            f"[{len(self.finished)}/{len(self.names)}] {self.names[event.cell]}: {event.state}",
            f"round {event.round}/{event.rounds}",
            figures_text(event.figures),
            event.text,
            self.time_left() if event.state != "interrupted" else "",
        ]
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


class LiveReporter(Reporter):
    """Draws a bar for the grid in place, with the cell of the last event; finished cells scroll by above it."""

    def __init__(self, names: dict[str, str], rounds: dict[str, int]) -> None:
        super().__init__(names, rounds)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._bar = self._progress.add_task("", total=sum(rounds.values()))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        parts = (f"{self.names[event.cell]}: {event.state}", figures_text(event.figures), event.text)
        line = ", ".join(part for part in parts if part)
        if event.state != "running":
            self._progress.console.print(line, markup=False, highlight=False)
            line = ""
        counts = (f"{len(self.finished)}/{len(self.names)} cells", self.time_left(), line)
        text = ", ".join(part for part in counts if part)
        done = (self.rounds[cell] if cell in self.finished else so_far for cell, so_far in self.done_rounds.items())
        self._progress.update(self._bar, completed=sum(done), description=text)


def reporter(names: dict[str, str], rounds: dict[str, int], *, quiet: bool, verbose: bool) -> Reporter:
    """The reporter that suits stderr: live in a terminal, else plain lines; every round with `verbose`."""
    if quiet:
        return Reporter(names, rounds)
    if sys.stderr.isatty() and not verbose:
        return LiveReporter(names, rounds)
    return PlainReporter(names, rounds, verbose=verbose)


def headline(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """The two accuracies that a progress line shows, by metric; for people only, nothing is chosen by them."""
    accuracies = {}
    for row in metrics:
        if (row["split"], row["quantity"]) == ("test", "accuracy") and row["mean"] in MAIN_MEANS:
            place = "global" if row["metric"] == "gm" else "local"
            if row["metric"] not in accuracies or row["on"] == place:
                accuracies[row["metric"]] = float(row["value"])
    return {metric: accuracies[metric] for metric in ("gm", "pm") if metric in accuracies}


def figures_text(figures: dict[str, float]) -> str:
    """Accuracies as text, e.g. `GM 0.812, PM 0.934`."""
    return ", ".join(f"{name.upper()} {value:.3f}" for name, value in figures.items())


def duration_text(seconds: float) -> str:
    """A duration as text, e.g. `45 s`, `12 min`, `3 h 20 min`, `2 d 5 h`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
