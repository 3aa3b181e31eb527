"""Run client programs: collect their requests, answer them for all clients at once, and continue the programs."""

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from bench.engine.anomalies import Diverged, Watch, check, owner_name
from bench.engine.backends.backends import EAGER, fastest, one_line
from bench.engine.batches import DrawAddress
from bench.engine.device_data import SERVER, DeviceData
from bench.engine.executors import Answers, Trainer
from bench.engine.lane_schedule import lanes_for
from bench.engine.predict import ForwardRequest, Task, answer_forwards, choose_samples_per_lane, outputs
from bench.engine.prepare import Prepared, Preparer, gradient_of
from bench.engine.private import OWN, PrivateSteps
from bench.engine.programs import Budget, ProgramRun, Reply, Work, advance, limit_to_budget, show_where
from bench.engine.recorded_steps import GraphCache
from bench.engine.sizes import lanes_on
from bench.engine.step import Recipe
from bench.engine.team import Assignment, Helpers, Job, Team
from bench.errors import UserError, in_words, shortage
from bench.method import Hyperparameters, Message, Program, is_static
from bench.model_call import Arithmetic
from bench.requests import Exchange, Gradient, Train, Trained
from bench.settings import Executor, Settings
from bench.tensors import gpu_memory_ran_out


class EngineOptions(TypedDict, total=False):
    """Options of an engine (see the attributes of `Engine`); `recordings` are steps that cells of a process share."""

    executor: Executor
    threads: int
    recordings: GraphCache | None
    allow_fallback: Collection[str]


_UNMAPPED = {
    "data-dependent control flow": "it reads a number in Python, as `.item()`, `float` and an `if` on a tensor do: "
    "take `torch.where`",
    "dynamic shape": "a size in it depends on numbers, as that of `unique` or `nonzero`: multiply by a mask of 0 and 1",
    "data pointer": "it reads a tensor as numbers of Python or NumPy: compute with torch",
    "inplace": "it changes a tensor in place that all clients share: `a = a + b`, not `a += b` or `a[i] = b`",
    "broadcast shape": "it changes a tensor in place that all clients share: `a = a + b`, not `a += b` or `a[i] = b`",
    "random operation": "it draws from torch's generator: give `Train` the argument `draws=`, and read `batch.draws`",
}
"""Why a loss cannot be mapped over clients, by words of torch's own errors, which are several lines about `vmap`."""


def _unmapped(error: Exception, recipe: Recipe) -> str:
    """Say why a loss cannot be mapped over clients, and in which of its lines."""
    words = next((why for sign, why in _UNMAPPED.items() if sign in str(error)), one_line(error))
    return in_words(RuntimeError(words).with_traceback(error.__traceback__), recipe.file).partition(": ")[2]


def _second_backward(error: Exception, recipe: Recipe) -> str:
    """Say what a loss or a network does beside the engine's backward pass; empty if the error is of another kind."""
    if "through the graph a second time" in str(error):
        return (
            f"{recipe.name} ({Path(recipe.file or '').name}) calls `.backward()` or `torch.autograd.grad`, which the "
            "engine does once it has the loss: return the loss, and let a `step` ask for gradients by `do.gradient`"
        )
    if "use_reentrant=True" in str(error):
        return f"{recipe.name}: the network computes activations a second time: switch gradient checkpointing off"
    return ""


class Engine:
    """Answers requests on one device with one executor.

    Attributes:
        executor: `sequential`, `cohort`, or `auto`: cohorts, but for convolutions and recurrent layers on a CPU, which
            gain nothing (docs/performance-log.md). `debug` is `sequential` without threads and recordings; it names the
            step and the layer where something was not finite for the first time.
        lanes: clients per call of a cohort, on a GPU at most; fixed by model and device (the byte promise rests on it).
        threads: clients at a time in the sequential executor, cohorts at a time in the other.
        allow_fallback: on a GPU, names of losses that may run one client after the other if they cannot be mapped, or
            whose steps may run unrecorded, and of backends that may fail though none but eager is left. All this is
            tens of times slower there, so it is an error unless allowed. On a CPU everything is.
        fallbacks: losses that could not be mapped over clients.
        notices: messages to the user about what happened so far, one line each.
        failed: backends that could not run a step (see `bench.engine.backends.backends`).
        done: what programs had done so far, of clients and of the server.
        watch: what looks at each step under `debug`.
        private: the noisy steps of clients so far (the cell's setting `dp_sgd`).
        steps, images, seconds: client steps trained so far on this device, the samples in them, and what drawing and
            training took.
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
        allow_fallback: Collection[str] = (),
    ) -> None:
        self.settings = settings
        self.allow_fallback = allow_fallback
        self.device_data = device_data
        self.dtype = getattr(torch, settings.dtype)
        self.executor = executor
        self.threads = threads
        self.lanes = lanes_on(device_data.device.type, size)
        self.fallbacks: list[str] = []
        self.notices: list[str] = []
        self.failed: list[str] = []
        self.steps = self.images = 0
        self.private = PrivateSteps()
        self.done = {"clients": Work(0, 0), "server": Work(0, 0)}
        self.seconds = 0.0
        self.watch: Callable[[Prepared], Watch] = Watch
        self._arithmetic = Arithmetic(settings.precision)
        self._preparer = Preparer(device_data, settings, self._arithmetic)
        values = hp_values(hyper, self.dtype, device_data.device)
        self._trainer = Trainer(device_data, values, self.dtype, recordings or GraphCache())
        self._team: Team | None = None

    def share_with(self, helpers: Helpers) -> None:
        """Let engines on other devices train and evaluate some of the clients. The results have the same bytes."""
        sizes = (
            map(len, of_client) for of_client in zip(*(stage.train for stage in self.device_data.stages), strict=True)
        )
        self._team = Team(helpers, list(map(max, sizes)))

    def run(self, programs: list[ProgramRun], reply: Reply | None = None, budget: Budget | None = None) -> None:
        """Run all programs to their ends; `reply` answers an `Exchange` when every program waits for one.

        With a `budget`, programs wait before their first training after an upload until all have reached that point or
        ended; then the budget says how many steps each may take.
        """
        for p in programs:
            advance(p, None)
        while open_ := [p for p in programs if not p.done]:
            at_budget = [p for p in open_ if budget and p.uploaded and not p.limited and isinstance(p.waiting, Train)]
            if budget and len(at_budget) == len(open_):
                limit_to_budget(at_budget, budget())
                continue
            work = [p for p in open_ if not isinstance(p.waiting, Exchange)]
            if at_budget:  # the others continue until all have reached that point
                work = [p for p in work if id(p) not in map(id, at_budget)]
            try:
                answers = self._answer(work) if work else self._exchange(open_, reply)
            except (TypeError, ValueError, AttributeError, KeyError) as error:  # a request, or its loss, is wrong
                show_where(work or open_, error)
                raise
            for p, answer in zip(work or open_, answers, strict=True):
                advance(p, answer)

    def finish(self, owner: int, program: Program | Any, address: DrawAddress) -> Any:
        """Run one program and return its result, or the value itself where no program is needed."""
        return self.finish_all([(owner, program, address)])[0]

    def finish_all(self, programs: Iterable[tuple[int, Program | Any, DrawAddress]]) -> list[Any]:
        """Run programs side by side and return their results; a plain value is its own result."""
        running = [(ProgramRun(o, p, a) if hasattr(p, "send") else p) for o, p, a in programs]
        self.run([r for r in running if isinstance(r, ProgramRun)])
        return [r.result if isinstance(r, ProgramRun) else r for r in running]

    def _exchange(self, programs: list[ProgramRun], reply: Reply | None) -> list[Any]:
        if reply is None:
            raise ValueError("an Exchange needs a synchronous server: every selected client must be in the round")
        sent = []
        for p in programs:
            assert isinstance(p.waiting, Exchange)
            sent.append(p.send(p.waiting.values, 1.0))
        answers = reply([Message(p.owner, s.values, 1.0, p.address.round) for p, s in zip(programs, sent, strict=True)])
        for p, message in zip(programs, sent, strict=True):
            p.events.append(message._replace(waits=True, reply=answers[p.owner]))
        return [answers[p.owner] for p in programs]

    def _answer(self, programs: list[ProgramRun]) -> list[Any]:
        """Answer the requests that programs wait for, each kind of request in groups."""
        jobs: dict[int, Job] = {}
        forwards: dict[int, ForwardRequest] = {}
        for i, p in enumerate(programs):
            request = p.waiting
            if isinstance(request, Train):
                jobs[i] = Job(request, p.next_training(), p.limit)
            elif isinstance(request, Gradient):
                if self.settings.dp_sgd is not None and request.samples in OWN:
                    raise UserError("dp_sgd: the method asks for the gradient of all samples, which has no noise")
                jobs[i] = Job(request, p.address, None)  # a gradient is of all samples or wrong
            else:
                assert isinstance(request, ForwardRequest), f"not a request: {request!r}"
                forwards[i] = request
                if request.samples in OWN and p.owner != SERVER:
                    self.private.looks.add(type(request).__name__)
        answers: dict[int, Any] = {}
        for (i, job), (answer, work) in zip(jobs.items(), self._trainings(list(jobs.values())), strict=True):
            answers[i] = answer
            self._note(programs[i], work)
            if self.settings.dp_sgd is not None and isinstance(job.request, Train) and job.request.feed.samples in OWN:
                self.private.add(job.address.owner, self._preparer.rate(job.request, job.address), work.steps)
            if job.limit is not None:
                programs[i].limit = job.limit - work.steps
        if forwards:
            forward_answers, works = answer_forwards(self.device_data, self.outputs, programs, forwards)
            answers |= forward_answers
            for i, work in works.items():
                self._note(programs[i], work)
        return [answers[i] for i in range(len(programs))]

    def _note(self, p: ProgramRun, work: Work) -> None:
        """Add work to a program's events and to the totals of clients or of the server."""
        p.events.append(work)
        side = "server" if p.owner == SERVER else "clients"
        done = self.done[side]
        self.done[side] = Work(done.steps + work.steps, done.samples + work.samples)

    def _trainings(self, jobs: list[Job]) -> list[tuple[Any, Work]]:
        """Return the answers to trainings and their cost, on whichever device they run."""
        if not jobs or not self._team or any(job.address.owner == SERVER for job in jobs):
            return self._train_here(jobs)
        return self._team.train(self, jobs)

    def do(self, assignment: Assignment) -> list[Any]:
        """Do an assignment's trainings, or else its evaluations, on this device."""
        if assignment.jobs:
            return self._train_here(assignment.jobs)
        self.check_recordings(1)
        return self._outputs_here(assignment.samples, assignment.tasks, assignment.output, assignment.samples_per_lane)

    def _train_here(self, jobs: Sequence[Job]) -> list[tuple[Any, Work]]:
        """Train in groups of one recipe.

        Raises:
            Diverged: a trained value is not finite; the error is that of the first job with such a value.
        """
        answers: dict[int, tuple[Any, Work]] = {}
        diverged: list[Diverged] = []
        for places, group in self._grouped(jobs):
            try:
                trained = self.train(group)
            except Diverged as error:
                diverged.append(error)
                continue
            for i, prepared, answer, samples in zip(
                places, group, trained, self._trainer.steps.samples(group), strict=True
            ):
                request = jobs[i].request
                result = gradient_of(request, answer) if isinstance(request, Gradient) else answer
                answers[i] = result, Work(prepared.steps, samples)
        if diverged:
            self.check_recordings(math.inf)
            owners = [job.address.owner for job in jobs]
            raise min(diverged, key=lambda error: owners.index(error.owner))
        return [answers[i] for i in range(len(jobs))]

    def _grouped(self, jobs: Sequence[Job]) -> list[tuple[list[int], list[Prepared]]]:
        """Prepare requests and group them by recipe, with their places."""
        start = time.perf_counter()
        groups: dict[int, tuple[list[int], list[Prepared]]] = {}  # by recipe; equal ones are one object
        for i, (request, address, limit) in enumerate(jobs):
            prepared = self._preparer.prepare(request, address, limit)
            places, group = groups.setdefault(id(prepared.recipe), ([], []))
            places.append(i)
            group.append(prepared)
        self.seconds += time.perf_counter() - start
        return list(groups.values())

    def train(self, group: list[Prepared]) -> list[Trained]:
        """Train a group of one recipe.

        Raises:
            Diverged: a trained value is not finite.
        """
        start = time.perf_counter()
        alone_is_faster = (
            self.executor == "auto" and self.device_data.device.type == "cpu" and group[0].recipe.better_alone
        )
        on_server = group[0].address.owner == SERVER  # a single program: in a cohort all lanes but one would be idle
        try:
            if self.executor == "debug":
                trained, finite = [self._watched(prepared) for prepared in group], True
            elif self.executor == "sequential" or alone_is_faster:
                trained, finite = self._trainer.sequential(group, self.threads)
            elif on_server:
                trained, finite = self._one_by_one(group)
            else:
                trained, finite = self._cohort(group)
        except RuntimeError as error:
            if problem := _second_backward(error, group[0].recipe):
                raise UserError(problem) from error
            raise
        if not finite:
            for prepared, result in zip(group, trained, strict=True):
                check(prepared, result)
        if group[0].recipe.private:
            self._trainer.check_losses(group, trained)
        self.steps += sum(prepared.steps for prepared in group)
        self.images += sum(sum(prepared.samples.values()) for prepared in group)
        self._look_for_failures()
        self.seconds += time.perf_counter() - start  # whether values are finite was read, so the device is done
        return trained

    def _watched(self, prepared: Prepared) -> Trained:
        """Train one client and check every step.

        Values that were not finite meanwhile but are at the end only add a notice: `sequential` would not see them.
        """
        watch = self.watch(prepared)
        trained = self._trainer.alone(prepared, watch)
        check(prepared, trained, watch.first)
        if watch.first:
            self.notices.append(
                f"round {prepared.address.round + 1}: {owner_name(prepared.address.owner)} was not finite {watch.first}"
            )
        return trained

    def _cohort(self, group: list[Prepared]) -> Answers:
        """Train all clients at once; as many at a time as there are lanes, if models are kept in the host's memory or
        steps have noise, which takes the memory of a model for each of them."""
        together = self.device_data.home == self.device_data.device and not group[0].recipe.private
        at_once = len(group) if together else self.lanes
        parts = [self._cohort_that_fits(group[i : i + at_once]) for i in range(0, len(group), at_once)]
        return [answer for trained, _ in parts for answer in trained], all(finite for _, finite in parts)

    def _cohort_that_fits(self, group: list[Prepared]) -> Answers:
        recipe = group[0].recipe
        one_lane = self.device_data.device.type != "cpu" and recipe.in_groups
        if one_lane:
            self.notices.append(
                f"{recipe.name} trains one client after the other: its network has convolutions in groups, with a "
                "dilation, or of a type that is not PyTorch's, for which there is no cohort"
            )
        while True:
            try:
                return self._trainer.cohort(group, 1 if one_lane else self.lanes, self._cohorts)
            except UserError:  # clients one by one would be refused alike
                raise
            except Exception as error:  # the loss cannot be mapped, or has a bug; a bug is raised again one by one
                if not gpu_memory_ran_out(error):
                    if shortage(error):
                        raise
                    return self._run_one_by_one(group, error)
                if self._lanes_for(len(group)) == 1:
                    raise
            # Outside the `except` block, because the error keeps the attempt's tensors in memory.
            self.lanes = self._lanes_for(len(group)) // 2
            self.notices.append(
                f"GPU memory ran out: cohorts of {self.lanes} clients from here on; the bytes of this cell's results "
                "are not promised to repeat"
            )

    def _run_one_by_one(self, group: list[Prepared], error: Exception) -> Answers:
        """Train clients whose loss could not be mapped, because of this error."""
        name, why = group[0].recipe.name, _unmapped(error, group[0].recipe)
        self._allow(name, f"{name} cannot be mapped over clients: {why}", error)
        answers = self._one_by_one(group)
        if name not in self.fallbacks:
            self.fallbacks.append(name)
            self.notices.append(f"{name} cannot be mapped over clients and runs one by one: {why}")
        return answers

    def _one_by_one(self, group: list[Prepared]) -> Answers:
        recipe = group[0].recipe
        problem = f"the steps of {recipe.name} on one such network alone cannot be recorded"
        if not recipe.recordable and self._allow(recipe.name, problem) and recipe.name not in self.fallbacks:
            self.fallbacks.append(recipe.name)
            self.notices.append(f"{recipe.name} runs one by one: its steps on one such network cannot be recorded")
        return self._trainer.sequential(group, self.threads)

    def _allow(self, name: str, problem: str, cause: Exception | None = None) -> bool:
        """Return whether this is a GPU, and raise an error if it is not allowed there by name."""
        if self.device_data.device.type == "cpu":
            return False
        if name not in self.allow_fallback:
            slow = "On a GPU its clients would train tens of times slower"
            raise UserError(f"{problem}. {slow}; --allow-fallback {shlex.quote(name)} takes that") from cause
        return True

    @property
    def calls(self) -> Counter[str]:
        """Number of calls of training steps on each backend; a cohort's step counts once."""
        return self._trainer.steps.calls

    @property
    def backend(self) -> str:
        """The backend that steps run on once they are recorded: the fastest one for this device that has not failed."""
        never = self.executor == "debug" or not self._trainer.steps.records
        return EAGER if never else fastest(self.device_data.device.type, self.failed)

    @property
    def steps_are(self) -> str:
        """`fallen back` where a backend failed or a loss could not be mapped, else `as planned`."""
        return "fallen back" if self.failed or self.fallbacks else "as planned"

    def check_recordings(self, times: float) -> None:
        """Compare the recordings that this cell has used with the steps themselves, each at most so many times in all.

        Raises:
            WrongRecordingError: one of them computes other numbers.
        """
        for step in self._trainer.steps.used:
            try:
                step.check(times)
            except RuntimeError as error:
                if not gpu_memory_ran_out(error):
                    raise
                self.notices.append("a recorded step was not compared with the step itself, as GPU memory ran out")

    def _look_for_failures(self) -> None:
        """Add one notice for each backend that has failed."""
        for step in tuple(self._trainer.steps.used):
            for name, reason in step.failed.items():
                if name not in self.failed:
                    next_best = fastest(self.device_data.device.type, [*self.failed, name])
                    if next_best == EAGER:
                        self._allow(name, f"the backend {name} failed: {reason}")
                    self.failed.append(name)
                    self.notices.append(f"the backend {name} failed and {next_best} takes its place: {reason}")

    @property
    def _cohorts(self) -> int:
        """Number of cohorts that run at a time; one on a GPU."""
        return self.threads if self.device_data.device.type == "cpu" else 1

    def _lanes_for(self, clients: int) -> int:
        """Lanes in which so many clients go side by side: a GPU takes no more than they need."""
        return self.lanes if self.device_data.device.type == "cpu" else lanes_for(clients, self.lanes)

    def outputs(
        self, samples: Any, tasks: list[Task], output: Any = "logits", owners: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Outputs of model values on samples of one pool.

        Args:
            owners: the client whose model each is, or SERVER, so that it is looked at where it was trained.
        """
        samples_per_lane = 0 if self.executor in ("sequential", "debug") else choose_samples_per_lane(tasks)
        if not self._team:
            return self._outputs_here(samples, tasks, output, samples_per_lane)
        return self._team.evaluate(self, samples, tasks, output, samples_per_lane, owners or [SERVER] * len(tasks))

    def _outputs_here(self, samples: Any, tasks: Sequence[Task], output: Any, samples_per_lane: int) -> list[Tensor]:
        results = outputs(
            self.device_data.pool(samples),
            tasks,
            self._arithmetic,
            output=output,
            lanes=self._lanes_for(len(tasks)),
            samples_per_lane=samples_per_lane,
            threads=self._cohorts,
            used=self._trainer.steps.used,
        )
        self._look_for_failures()
        return results


def hp_values(hyper: Hyperparameters, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Hyperparameters as a loss receives them in `ctx.hp`: floats as tensors `[]`, static and other values plain."""
    values: dict[str, Any] = {}
    for name, info in type(hyper).model_fields.items():
        value = getattr(hyper, name)
        # A recorded step takes tensors as arguments, so that cells which differ in such a number share it.
        as_tensor = isinstance(value, float) and not is_static(info)
        values[name] = torch.tensor(value, dtype=dtype, device=device) if as_tensor else value
    return values
