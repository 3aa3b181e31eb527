"""Runs client programs: collects what they ask for, answers it for all of them at once, and goes on."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.data import Indices
from bench.engine.anomalies import Watch, check, check_sums, who
from bench.engine.backends import EAGER, fastest, one_line
from bench.engine.batches import Address
from bench.engine.device import gpu_memory_ran_out, lanes_on
from bench.engine.device_data import SERVER, DeviceData
from bench.engine.executors import Answers, GraphCache, Trainer
from bench.engine.gradient import as_train, gradient_of
from bench.engine.packing import lanes_for
from bench.engine.predict import Task, accuracy_and_loss, class_sums, outputs
from bench.engine.prepare import Prepared, Preparer
from bench.errors import UserError, shortage
from bench.method import Hyperparameters, Message, Program
from bench.params import Params, Spec
from bench.requests import (
    ClassStats,
    ClassSums,
    Evaluate,
    Exchange,
    Gradient,
    Predict,
    Request,
    Train,
    Trained,
    Upload,
)
from bench.settings import Settings

Look = Predict | Evaluate | ClassStats
Executor = Literal["auto", "sequential", "cohort", "debug"]


class Work(NamedTuple):
    """What a program had done, for the clock: steps, and samples, each as often as a gradient or a look read it."""

    steps: int
    samples: int


class Sent(NamedTuple):
    """A message that a program sent; with `waits` it waited for the reply (`Exchange`)."""

    values: dict[str, Any]
    weight: float | None = None
    waits: bool = False
    reply: Any = None


@dataclass
class ProgramRun:
    """A program under way.

    Attributes:
        owner: a client's id, or SERVER.
        program: the generator.
        address: whose draws it makes.
        events: what it did, in order.
        result: what it returned.
        limit: how many steps it may still take; trainings end there (None: as many as they ask for).
    """

    owner: int
    program: Program
    address: Address
    events: list[Work | Sent] = field(default_factory=list)
    result: Any = None
    waiting: Request | None = None
    done: bool = False
    fitted: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no program: a round without a `yield` is an ordinary function, which has run already."""
        if not hasattr(self.program, "send"):
            raise TypeError(
                f"a round gave {type(self.program).__name__}, not a program: it has to `yield` at least one request, "
                "for instance Train(...) and then Upload(...)"
            )

    @property
    def uploaded(self) -> bool:
        """Whether it has sent a message that it does not wait for."""
        return any(isinstance(event, Sent) and not event.waits for event in self.events)


Budget = Callable[[], Mapping[int, int]]
"""By owner, how many steps fit into the time until the next broadcast."""

_SLOW = "On a GPU its clients would train tens of times slower; --allow-fallback takes that"
Reply = Callable[[list[Message]], Mapping[int, Any]]


class Engine:
    """Answers requests on one device with one executor.

    Attributes:
        executor: `sequential`, `cohort`, or `auto`: cohorts, but for convolutions and recurrent layers on a CPU, which
            gain nothing (docs/performance.md). `debug` is `sequential` without threads and recordings; it names the
            step and the layer where something was not finite for the first time.
        lanes: clients per call of a cohort, on a GPU at most; fixed by model and device (the byte promise rests on it).
        threads: clients at a time in the sequential executor, cohorts at a time in the other.
        allow_fallback: on a GPU, whether a loss that cannot be mapped runs one client after the other, and a step that
            cannot be recorded as it is. Either is tens of times slower there, so it is an error unless allowed.
        fallbacks: losses that could not be mapped over clients.
        notices: what the user should know of what happened so far.
        failed: backends that could not run a step (see `bench.engine.backends`).
        done: what programs had done so far, of clients and of the server.
        steps, images, seconds: client steps trained so far, the samples in them, and what drawing and training took.
    """

    def __init__(
        self,
        settings: Settings,
        device_data: DeviceData,
        hyper: Hyperparameters,
        *,
        size: int,
        executor: Executor = "auto",
        threads: int = 1,
        recordings: GraphCache | None = None,
        allow_fallback: bool = False,
    ) -> None:
        self.settings = settings
        self.allow_fallback = allow_fallback or device_data.device.type == "cpu"
        self.device_data = device_data
        self.dtype = getattr(torch, settings.dtype)
        self.executor = executor
        self.threads = threads
        self.lanes = lanes_on(device_data.device, size)
        self.fallbacks: list[str] = []
        self.notices: list[str] = []
        self.failed: list[str] = []
        self.steps = self.images = 0
        self.done = {"clients": Work(0, 0), "server": Work(0, 0)}
        self.seconds = 0.0
        self._preparer = Preparer(device_data, settings)
        values = hp_values(hyper, self.dtype, device_data.device)
        self._trainer = Trainer(device_data, values, self.dtype, recordings or GraphCache())

    def run(self, programs: list[ProgramRun], reply: Reply | None = None, budget: Budget | None = None) -> None:
        """Run all programs to their ends; `reply` answers an `Exchange` when every program waits for one.

        With a `budget`, the first training after a program's upload has as many steps as that says, once every program
        stands there or has ended.
        """
        for p in programs:
            _advance(p, None)
        while open_ := [p for p in programs if not p.done]:
            fit = [p for p in open_ if budget and p.uploaded and not p.fitted and isinstance(p.waiting, Train)]
            if budget and len(fit) == len(open_):
                _fit(fit, budget())
                continue
            work = [p for p in open_ if not isinstance(p.waiting, Exchange)]
            if fit:  # the others go on until all stand there
                work = [p for p in work if id(p) not in map(id, fit)]
            answers = self._answer(work) if work else self._exchange(open_, reply)
            for p, answer in zip(work or open_, answers, strict=True):
                _advance(p, answer)

    def finish(self, owner: int, program: Program | Any, address: Address) -> Any:
        """The result of one program, or the value itself where no program is needed."""
        return self.finish_all([(owner, program, address)])[0]

    def finish_all(self, programs: Iterable[tuple[int, Program | Any, Address]]) -> list[Any]:
        """The results of programs (or plain values) side by side."""
        running = [(ProgramRun(o, p, a) if hasattr(p, "send") else p) for o, p, a in programs]
        self.run([r for r in running if isinstance(r, ProgramRun)])
        return [r.result if isinstance(r, ProgramRun) else r for r in running]

    def _exchange(self, programs: list[ProgramRun], reply: Reply | None) -> list[Any]:
        if reply is None:
            raise ValueError("an Exchange needs a synchronous server: every selected client must be in the round")
        messages = []
        for p in programs:
            assert isinstance(p.waiting, Exchange)
            messages.append(Message(p.owner, dict(p.waiting.values), 1.0, p.address.round))
        answers = reply(messages)
        for p, message in zip(programs, messages, strict=True):
            p.events.append(Sent(message.values, waits=True, reply=answers[p.owner]))
        return [answers[p.owner] for p in programs]

    def _answer(self, programs: list[ProgramRun]) -> list[Any]:
        """The answers to what the programs wait for, each kind of request in groups."""
        trainings: dict[int, Train] = {}
        gradients: dict[int, Gradient] = {}
        looks: dict[int, Look] = {}
        for i, p in enumerate(programs):
            request = p.waiting
            if isinstance(request, Train):
                trainings[i] = request
            elif isinstance(request, Gradient):
                gradients[i], trainings[i] = request, as_train(request)
            else:
                assert isinstance(request, Look), f"not a request: {request!r}"
                looks[i] = request
        answers: dict[int, Any] = {}
        for owners, group in self._grouped(programs, trainings):
            answers |= zip(owners, self.train(group), strict=True)
            for i, one, samples in zip(owners, group, self._trainer.samples(group), strict=True):
                self._note(programs[i], Work(one.steps, samples))
        for i, gradient in gradients.items():
            answers[i] = gradient_of(gradient, answers[i])
        if looks:
            answers |= self._look(programs, looks)
        return [answers[i] for i in range(len(programs))]

    def _note(self, p: ProgramRun, work: Work) -> None:
        """Put down what a program had done."""
        p.events.append(work)
        who = "server" if p.owner == SERVER else "clients"
        before = self.done[who]
        self.done[who] = Work(before.steps + work.steps, before.samples + work.samples)

    def _grouped(
        self, programs: list[ProgramRun], trainings: dict[int, Train]
    ) -> list[tuple[list[int], list[Prepared]]]:
        """Requests of one recipe together, with whose they are."""
        start = time.perf_counter()
        groups: dict[int, tuple[list[int], list[Prepared]]] = {}  # by recipe; equal ones are one object
        for i, request in trainings.items():
            p = programs[i]
            limit = p.limit if isinstance(p.waiting, Train) else None  # a gradient is of all samples or wrong
            prepared = self._preparer.prepare(request, p.address, limit)
            if limit is not None:
                p.limit = limit - prepared.steps
            owners, group = groups.setdefault(id(prepared.recipe), ([], []))
            owners.append(i)
            group.append(prepared)
        self.seconds += time.perf_counter() - start
        return list(groups.values())

    def train(self, group: list[Prepared]) -> list[Trained]:
        """Train a group of one recipe.

        Raises:
            Diverged: a trained value is not finite.
        """
        start = time.perf_counter()
        slow_abreast = (
            self.executor == "auto" and self.device_data.device.type == "cpu" and group[0].recipe.better_alone
        )
        on_server = group[0].address.owner == SERVER  # the only program of its kind: all other lanes would be idle
        if self.executor == "debug":
            trained, finite = [self._watched(one) for one in group], True
        elif self.executor == "sequential" or slow_abreast or on_server:
            trained, finite = self._trainer.sequential(group, self.threads)
        else:
            trained, finite = self._cohort(group)
        if not finite:
            for one, result in zip(group, trained, strict=True):
                check(one, result)
        self.steps += sum(one.steps for one in group)
        self.images += sum(sum(one.samples.values()) for one in group)
        self._look_for_failures()
        self.seconds += time.perf_counter() - start  # whether values are finite was read, so the device is done
        return trained

    def _watched(self, one: Prepared) -> Trained:
        """Train one client with an eye on every step; what `sequential` would go on with is a notice only."""
        watch = Watch(one)
        trained = self._trainer.alone(one, watch)
        check(one, trained, watch.first)
        if watch.first:
            self.notices.append(f"round {one.address.round + 1}: {who(one)} was not finite {watch.first}")
        return trained

    def _cohort(self, group: list[Prepared]) -> Answers:
        """All at once, or, where models rest on the host, as many at a time as there are lanes."""
        at_once = len(group) if self.device_data.home == self.device_data.device else self.lanes
        parts = [self._fitted(group[i : i + at_once]) for i in range(0, len(group), at_once)]
        return [one for trained, _ in parts for one in trained], all(finite for _, finite in parts)

    def _fitted(self, group: list[Prepared]) -> Answers:
        while True:
            try:
                return self._trainer.cohort(group, self.lanes, self._cohorts)
            except Exception as error:  # of the map, or of the loss itself: then it is raised again, one by one
                if not gpu_memory_ran_out(error):
                    if shortage(error):
                        raise
                    return self._unmapped(group, error)
                if self._lanes_for(len(group)) == 1:
                    raise
            # Out here, as the error holds on to all that the attempt had.
            self.lanes = self._lanes_for(len(group)) // 2
            self.notices.append(
                f"GPU memory ran out: cohorts of {self.lanes} clients from here on; the bytes of this cell's results "
                "are not promised to repeat"
            )

    def _unmapped(self, group: list[Prepared], error: Exception) -> Answers:
        what = group[0].recipe.step or group[0].recipe.loss
        name = getattr(what, "__qualname__", repr(what))
        if not self.allow_fallback:
            raise UserError(f"{name} cannot be mapped over clients: {one_line(error)}. {_SLOW}") from error
        answers = self._trainer.sequential(group, self.threads)
        if name not in self.fallbacks:
            self.fallbacks.append(name)
            self.notices.append(f"{name} cannot be mapped over clients and runs one by one: {one_line(error)}")
        return answers

    @property
    def backend(self) -> str:
        """The fastest backend that steps may take here; after a failure, the one that is left to all of them."""
        return EAGER if self.executor == "debug" else fastest(self.device_data.device.type, self.failed)

    @property
    def steps_are(self) -> str:
        """How steps run: `recorded`, `eager`, or `fallen back` where a backend failed or a loss could not be mapped."""
        if self.failed or self.fallbacks:
            return "fallen back"
        return "eager" if self.backend == EAGER else "recorded"

    def _look_for_failures(self) -> None:
        """A notice of each backend that failed, once."""
        for step in tuple(self._trainer.used):
            for name, reason in step.failed.items():
                if name not in self.failed:
                    if not self.allow_fallback:
                        raise UserError(f"the backend {name} failed: {reason}. {_SLOW}")
                    self.failed.append(name)
                    self.notices.append(f"the backend {name} failed and {self.backend} takes its place: {reason}")

    @property
    def _cohorts(self) -> int:
        """Cohorts at a time; a GPU has one."""
        return self.threads if self.device_data.device.type == "cpu" else 1

    def _lanes_for(self, clients: int) -> int:
        """Lanes in which so many clients go side by side: a GPU takes no more than they need."""
        return self.lanes if self.device_data.device.type == "cpu" else lanes_for(clients, self.lanes)

    def _look(self, programs: list[ProgramRun], asked: dict[int, Look]) -> dict[int, Any]:
        """The answers to all requests that train nothing."""
        by_kind: dict[tuple[Any, Any, Spec], list[tuple[int, int, Task]]] = defaultdict(list)
        for i, request in asked.items():
            subset = request.subset if isinstance(request, Predict) else None
            positions = self.device_data.positions(
                programs[i].owner, request.samples, subset, programs[i].address.round
            )
            models, output = _looked_at(request)
            self._note(programs[i], Work(0, len(models) * len(positions)))
            for k, w in enumerate(models):
                by_kind[request.samples, output, w.spec].append((i, k, (w, positions)))
        found: dict[int, dict[int, tuple[Tensor, Indices]]] = defaultdict(dict)
        for (samples, kind, _), tasks in by_kind.items():
            rows = self.outputs(samples, [task for _, _, task in tasks], kind)
            for (i, k, (_, positions)), row in zip(tasks, rows, strict=True):
                found[i][k] = (row, positions)
        answers: dict[int, Any] = {}
        to_score: dict[Any, dict[int, list[tuple[Tensor, Indices]]]] = defaultdict(dict)
        for i, request in asked.items():
            if isinstance(request, Predict):
                answers[i] = found[i][0][0].to(self.device_data.home)
            elif isinstance(request, ClassStats):
                answers[i] = self._class_sums(programs[i].owner, request, *found[i][0])
            else:
                to_score[request.samples][i] = [found[i][k] for k in range(len(request.models))]
        for samples, scored in to_score.items():
            answers |= self._scores(samples, scored)
        return answers

    def outputs(self, samples: Any, tasks: list[Task], output: Any = "logits") -> list[Tensor]:
        """Outputs of model values on samples of one pool."""
        lanes = 0 if self.executor in ("sequential", "debug") else self._lanes_for(len(tasks))
        pool, used = self.device_data.pool(samples), self._trainer.used
        found = outputs(pool, tasks, output=output, lanes=lanes, threads=self._cohorts, used=used)
        self._look_for_failures()
        return found

    def _class_sums(self, owner: int, request: ClassStats, rows: Tensor, positions: Indices) -> ClassSums:
        pool, home = self.device_data.pool(request.samples), self.device_data.home
        sums = class_sums(pool, rows, positions, self.device_data.num_classes, request.moments)
        outer = None if sums.outer is None else sums.outer.to(home)
        check_sums(owner, sums)
        return ClassSums(sums.count.to(home), sums.sum.to(home), outer)

    def _scores(
        self, samples: Any, models: dict[int, list[tuple[Tensor, Indices]]]
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Losses and accuracies by program, from logits of its models; on the host, which waits for all at once."""
        rows = [row for own in models.values() for row in own]
        logits, positions = torch.cat([row for row, _ in rows]), np.concatenate([where for _, where in rows])
        hit, loss = accuracy_and_loss(self.device_data.pool(samples), logits, positions)
        lengths = [len(where) for _, where in rows]
        parts = torch.split(torch.stack([loss, hit.to(loss.dtype)]).cpu(), lengths, dim=1)
        # A client without samples of that kind scores a loss of 0 with every model.
        means = iter(part.sum(1) / max(1, n) for part, n in zip(parts, lengths, strict=True))
        both = {i: torch.stack([next(means) for _ in own], dim=1) for i, own in models.items()}
        return {i: (losses, right) for i, (losses, right) in both.items()}


def _looked_at(request: Look) -> tuple[Sequence[Params], str]:
    """The models that a request looks at, and which of their outputs it is about."""
    if isinstance(request, Evaluate):
        return request.models, "logits"
    return ([request.w], request.output) if isinstance(request, Predict) else ([request.model], request.of)


def hp_values(hyper: Hyperparameters, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What a loss sees as `ctx.hp`: floats as tensors, static and other values as they are."""
    found: dict[str, Any] = {}
    for name, info in type(hyper).model_fields.items():
        value = getattr(hyper, name)
        extra = info.json_schema_extra
        static = isinstance(extra, dict) and extra.get("static")
        found[name] = (
            torch.tensor(value, dtype=dtype, device=device) if isinstance(value, float) and not static else value
        )
    return found


def _fit(programs: list[ProgramRun], steps: Mapping[int, int]) -> None:
    for p in programs:
        assert isinstance(p.waiting, Train)
        p.waiting, p.fitted = p.waiting._replace(epochs=None, steps=steps[p.owner]), True


def _advance(p: ProgramRun, answer: Any) -> None:
    """Go on to the next request that needs an answer; uploads need none."""
    while True:
        try:
            request = p.program.send(answer)
        except StopIteration as stop:
            p.result, p.waiting, p.done = stop.value, None, True
            return
        if not isinstance(request, Upload):
            p.waiting = request
            return
        p.events.append(Sent(dict(request.values), request.weight))
        answer = None
