"""Several devices that share the clients of one cell: which device trains which client, and how answers are merged.

A client's bytes do not depend on its cohort, so any number of devices gives the bytes of one.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bench.engine.anomalies import Diverged
from bench.engine.batches import DrawAddress
from bench.engine.device_data import SERVER, DeviceData
from bench.engine.predict import Task, cut
from bench.errors import refusing_exits
from bench.requests import Gradient, Train

_SLACK = 1.1  # a device may get this multiple of an even share, so that clients train on the device with their state


class Job(NamedTuple):
    """A training of one program, of at most `limit` steps."""

    request: Train | Gradient
    address: DrawAddress
    limit: int | None


@dataclass(frozen=True)
class Assignment:
    """Work for one engine: trainings, or evaluations of models, with one answer for each.

    Attributes:
        owners: for each training or evaluation, a client's id or SERVER.
        costs: its samples, by which work is divided.
        jobs: the trainings.
        tasks: the evaluations.
        samples: the kind of samples that the tasks are about.
        output: what they compute of them.
        samples_per_lane: see `bench.engine.predict.choose_samples_per_lane`.
    """

    owners: Sequence[int]
    costs: Sequence[int]
    jobs: Sequence[Job] = ()
    tasks: Sequence[Task] = ()
    samples: Any = "train"
    output: Any = "logits"
    samples_per_lane: int = 0

    def subset(self, places: Sequence[int]) -> "Assignment":
        """The assignment with only the entries at these positions."""
        return replace(
            self,
            owners=[self.owners[i] for i in places],
            costs=[self.costs[i] for i in places],
            jobs=[self.jobs[i] for i in places] if self.jobs else (),
            tasks=[self.tasks[i] for i in places] if self.tasks else (),
        )


class SharedState(NamedTuple):
    """State that the engines of a cell share and change while they run (see `bench.engine.engine.Engine`).

    `stage` is that of `bench.engine.device_data.DeviceData`.
    """

    lanes: int
    failed: list[str]
    fallbacks: list[str]
    stage: int = 0


class HelperAnswer(NamedTuple):
    """A helper's reply: the answers or the error that prevented them, its shared state, and its notices."""

    outcome: "list[Any] | Exception"
    state: SharedState
    notices: list[str]


class SharingEngine(Protocol):
    """The part of `bench.engine.engine.Engine`, which has a team, that a team uses."""

    device_data: DeviceData
    lanes: int
    failed: list[str]
    fallbacks: list[str]
    notices: list[str]

    def do(self, assignment: Assignment) -> list[Any]:
        """Do the work of an assignment on this device and return one answer for each entry."""


class Helpers(Protocol):
    """Engines of the same cell in other processes, each on a device of its own."""

    def __len__(self) -> int:
        """Number of helpers."""

    def begin(self, assignments: Sequence[Assignment | None], state: SharedState) -> list[Callable[[], HelperAnswer]]:
        """Start the helpers on their assignments (see `serve`; None: nothing to do). Returns one function per
        assignment that waits for its answer.

        Raises:
            bench.errors.Lost: a helper is gone. The returned functions raise it, too.
        """


def serve(engine: SharingEngine, assignment: Assignment, state: SharedState) -> HelperAnswer:
    """Do the work that a helper is asked for."""
    _adopt(engine, state)
    outcome = _attempt(engine, assignment)
    if isinstance(outcome, Exception):
        outcome.add_note("".join(traceback.format_exception(outcome)))  # it has another one where it is raised again
    notices = list(engine.notices)
    engine.notices.clear()
    return HelperAnswer(outcome, _shared_state(engine), notices)


def _shared_state(engine: SharingEngine) -> SharedState:
    return SharedState(engine.lanes, list(engine.failed), list(engine.fallbacks), engine.device_data.stage)


def _adopt(engine: SharingEngine, state: SharedState) -> None:
    """Add another engine's shared state to this engine's."""
    engine.device_data.enter(state.stage)
    engine.lanes = min(engine.lanes, state.lanes)
    engine.failed += [name for name in state.failed if name not in engine.failed]
    engine.fallbacks += [name for name in state.fallbacks if name not in engine.fallbacks]


def _attempt(engine: SharingEngine, assignment: Assignment) -> list[Any] | Exception:
    try:
        with refusing_exits():
            return engine.do(assignment)
    except Exception as error:  # it is raised where the shares come together
        return error


@dataclass
class Team:
    """The devices of a cell: this process and its helpers.

    Attributes:
        helpers: the other devices.
        sizes: training samples of each client.
    """

    helpers: Helpers
    sizes: Sequence[int]
    _usual_device: list[int] = field(init=False)

    def __post_init__(self) -> None:
        shares = _shares(range(len(self.sizes)), self.sizes, 1 + len(self.helpers), [])
        usual_device = {client: device for device, share in enumerate(shares) for client in share}
        self._usual_device = [usual_device[client] for client in range(len(self.sizes))]

    def train(self, engine: SharingEngine, jobs: Sequence[Job]) -> list[Any]:
        """Train clients on all devices and return the answers in the order of the jobs."""
        owners = [job.address.owner for job in jobs]
        return self._do(engine, Assignment(owners, [self.sizes[i] for i in owners], jobs=jobs))

    def evaluate(
        self,
        engine: SharingEngine,
        samples: Any,
        tasks: Sequence[Task],
        output: Any,
        samples_per_lane: int,
        owners: Sequence[int],
    ) -> list[Tensor]:
        """Compute outputs of models: those of a client's where it trains, those of the server's by all devices."""
        kind = engine.device_data.device.type
        parts = [
            cut(task, 1 + len(self.helpers), kind) if owner == SERVER else [task]
            for task, owner in zip(tasks, owners, strict=True)
        ]
        owner_of_piece = [owner for owner, split in zip(owners, parts, strict=True) for _ in split]
        pieces = [piece for split in parts for piece in split]
        costs = [len(positions) for _, positions in pieces]
        assignment = Assignment(
            owner_of_piece, costs, tasks=pieces, samples=samples, output=output, samples_per_lane=samples_per_lane
        )
        outputs = iter(self._do(engine, assignment))
        return [torch.cat([next(outputs) for _ in split]) for split in parts]

    def _do(self, engine: SharingEngine, assignment: Assignment) -> list[Any]:
        """Do the work on all devices; the answers are in the order of the requests.

        Raises:
            Diverged: a value is not finite; the error is that of the first client with such a value.
        """
        shares = _shares(assignment.owners, assignment.costs, 1 + len(self.helpers), self._usual_device)
        waits = self.helpers.begin(
            [assignment.subset(share) if share else None for share in shares[1:]], _shared_state(engine)
        )
        outcomes = [_attempt(engine, assignment.subset(shares[0]))] if shares[0] else []
        for wait in waits:
            answer = wait()
            _adopt(engine, answer.state)
            engine.notices += [text for text in answer.notices if text not in engine.notices]
            outcomes.append(answer.outcome)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if errors:
            raise min(errors, key=lambda e: assignment.owners.index(e.owner) if isinstance(e, Diverged) else -1)
        places = [i for share in shares for i in share]
        values = (value for answers in outcomes if isinstance(answers, list) for value in answers)
        by_place = dict(zip(places, values, strict=True))
        return [by_place[i] for i in range(len(places))]


def _shares(owners: Sequence[int], costs: Sequence[int], devices: int, usual_device: Sequence[int]) -> list[list[int]]:
    """Divide work over devices: for each device, the positions of its entries.

    Clients come first, largest first, on their usual device unless its share would become too large; everything else
    goes to the device with the least work.
    """
    shares: list[list[int]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    limit = max(_SLACK * sum(costs) / devices, *costs, 0) if costs else 0.0
    for i in sorted(range(len(owners)), key=lambda i: (owners[i] == SERVER, -costs[i])):
        device = loads.index(min(loads))
        if usual_device and owners[i] != SERVER and loads[usual_device[owners[i]]] + costs[i] <= limit:
            device = usual_device[owners[i]]
        shares[device].append(i)
        loads[device] += costs[i]
    return [sorted(share) for share in shares]
