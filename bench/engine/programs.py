"""Running programs of clients and of the server: what they wait for and what they have done."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, NamedTuple

from bench.engine.batches import DrawAddress
from bench.method import Message, Program
from bench.requests import Request, Train, Upload, not_a_request


class Work(NamedTuple):
    """The work done for a program, from which the clock computes seconds.

    Attributes:
        steps: steps of training.
        samples: samples read, counted once for each gradient or forward pass.
    """

    steps: int
    samples: int


class Sent(NamedTuple):
    """A message that a program sent; with `waits` it waited for the reply (`Exchange`).

    Attributes:
        values: the values that arrive.
        encoded: bytes that were sent, but for running statistics; None: those of the values.
    """

    values: dict[str, Any]
    weight: float | None = None
    waits: bool = False
    reply: Any = None
    encoded: int | None = None


Passage = Callable[[dict[str, Any], float | None], Sent]
"""A message's way to the server: from its values and weight to what arrives."""


@dataclass
class ProgramRun:
    """A running program.

    Attributes:
        owner: a client's id, or SERVER.
        program: the generator.
        address: the address of its draws.
        events: its work and its messages, in order.
        result: the value that it returned.
        limit: number of steps that it may still take; trainings end there (None: as many as they ask for).
        trainings: how many it has asked for.
        passage: the way of its messages (None: they arrive as they are).
    """

    owner: int
    program: Program
    address: DrawAddress
    events: list[Work | Sent] = field(default_factory=list)
    result: Any = None
    waiting: Request | None = None
    done: bool = False
    limited: bool = False
    limit: int | None = None
    trainings: int = 0
    passage: Passage | None = None

    def __post_init__(self) -> None:
        """Refuse what is no generator: a round without `yield` is an ordinary function and has already run."""
        if not hasattr(self.program, "send"):
            raise TypeError(
                f"a round gave {type(self.program).__name__}, not a program: it has to `yield` at least one request, "
                "for instance Train(...) and then Upload(...)"
            )

    def next_training(self) -> DrawAddress:
        """The address of its next training."""
        self.trainings += 1
        return self.address._replace(training=self.trainings)

    def send(self, values: Mapping[str, Any], weight: float | None = None) -> Sent:
        """Send a message on its way."""
        if self.passage is None:
            return Sent(dict(values), weight)
        return self.passage(dict(values), weight)

    def repeats(self, request: Request) -> str:
        """Say which name a further upload has that the program has sent already; empty if there is none."""
        if not isinstance(request, Upload):
            return ""
        earlier = (event.values for event in self.events if isinstance(event, Sent) and not event.waits)
        if not (names := [name for values in earlier for name in values if name in request.values]):
            return ""
        return f"a second Upload has {names[0]!r} again, and a mean would count this client twice: upload a name once"

    @property
    def uploaded(self) -> bool:
        """Whether the program has sent a message that it does not wait for."""
        return any(isinstance(event, Sent) and not event.waits for event in self.events)


def show_where(programs: list[ProgramRun], error: Exception) -> None:
    """Let an error pass through the `yield` at which all programs wait, which its traceback then shows."""
    frames = [p.program.gi_frame for p in programs if isinstance(p.program, GeneratorType)]
    if len({(frame.f_code, frame.f_lineno) for frame in frames if frame}) == 1:
        with contextlib.suppress(StopIteration):
            programs[0].program.throw(error)


Budget = Callable[[], Mapping[int, int]]
"""By owner, how many steps fit into the time until the next broadcast."""

Reply = Callable[[list[Message]], Mapping[int, Any]]
"""The server's answer to messages that wait for one, by owner."""


def limit_to_budget(programs: list[ProgramRun], steps: Mapping[int, int]) -> None:
    """Limit each program's next training to the number of steps of its owner."""
    for p in programs:
        assert isinstance(p.waiting, Train)
        p.waiting, p.limited = p.waiting._replace(epochs=None, steps=steps[p.owner]), True


def advance(p: ProgramRun, answer: Any) -> None:
    """Run a program to its next request that needs an answer; uploads need none."""
    while True:
        try:
            request = p.program.send(answer)
        except StopIteration as stop:
            p.result, p.waiting, p.done = stop.value, None, True
            return
        if problem := not_a_request(request) or p.repeats(request):
            p.program.throw(TypeError(problem))  # at its `yield`, which the traceback then shows
            raise TypeError(problem)
        if not isinstance(request, Upload):
            p.waiting = request
            return
        p.events.append(p.send(request.values, request.weight))
        answer = None
