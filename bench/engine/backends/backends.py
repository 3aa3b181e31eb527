"""Ways to run a step, each faster and more fragile than the one before it, and the choice between them.

A step is a function of a list of tensors. `eager` calls it as it is. `graph` replays the tensor operations that it
comes down to (`bench/engine/backends/recording.py`). `torchscript` does the same without Python between the operations,
and with the loop around them (`bench/engine/backends/loops.py`). `cudagraph` has a GPU replay them. A backend is taken
only if it gives eager's bytes; one that fails, at its import or later, leaves the work to the one before it.
"""

import contextlib
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.engine.backends.cuda_graph import Captured
from bench.engine.backends.loops import Function
from bench.tensors import gpu_memory_ran_out

MakeLoop = Callable[[Any], nn.Module]
LoopFunction = Callable[..., list[Tensor]]

_RECORD_AFTER = 100  # calls; recording costs about as much as so many save
_CAPTURED_LANES = 16
_LESS_ON_GPU = 20  # there an eager call waits so much longer for Python, so recording pays sooner by this factor


class Backend:
    """A way to run a step.

    Attributes:
        name: its name in messages.
        devices: types of devices it works on.
        lends: whether its results lie in memory that a later call overwrites.
    """

    name: str
    devices: tuple[str, ...]
    lends = False

    def takes(self, examples: list[Tensor], *, in_place: bool) -> bool:
        """Return whether it gains anything for a step of these shapes: where nothing else is said, for all."""
        return True

    def make(self, step: Any, examples: list[Tensor], make_loop: MakeLoop, *, in_place: bool) -> nn.Module:
        """Build the loop around this backend's version of the step; that version is the loop's only submodule.

        If anything is raised, the backend is not used.

        Args:
            step: the step of the backend before this one; for the first backend, the function itself.
            examples: examples of the tensors that the step gets.
            make_loop: see `Recorded`.
            in_place: see `Recorded`.
        """
        raise NotImplementedError

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the loop has to run."""
        return contextlib.nullcontext()


class Graph(Backend):
    """The tensor operations, replayed from Python."""

    name = "graph"
    devices = ("cpu", "cuda")

    def make(self, step: Any, examples: list[Tensor], make_loop: MakeLoop, *, in_place: bool) -> nn.Module:
        """Record the step's tensor operations and build the loop around them."""
        from bench.engine.backends.recording import of_list, record, update_in_place  # loads PyTorch's tracer

        recorded = record(step, [_with_other_numbers(t) for t in examples])
        return make_loop(of_list(update_in_place(recorded) if in_place else recorded))


class TorchScript(Backend):
    """Runs the operations and the loop around them in one call, so that threads do not wait for Python.

    It is not used on GPUs, where it gains nothing.
    """

    name = "torchscript"
    devices = ("cpu",)

    def make(self, step: Any, examples: list[Tensor], make_loop: MakeLoop, *, in_place: bool) -> nn.Module:
        """Translate the loop around the recorded operations into TorchScript."""
        from torch.jit import script

        from bench.engine.backends.recording import named_by_packet

        with warnings.catch_warnings():
            # What is to take its place (torch.compile) needs a C++ compiler and longer than most cells of such models.
            warnings.filterwarnings("ignore", "`torch.jit")
            scripted: nn.Module = script(make_loop(named_by_packet(step)))
        return scripted

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without TorchScript's optimizer.

        The optimizer would replace some operations by others that round differently.
        """
        from torch.jit import optimized_execution  # type: ignore[attr-defined]

        context: contextlib.AbstractContextManager[None] = optimized_execution(False)
        return context


class CudaGraph(Backend):
    """The recorded operations as a CUDA graph (`bench/engine/backends/cuda_graph.py`): a GPU does not wait for Python.

    It is used for few lanes only. With more lanes, the GPU works for longer than Python takes to start its operations,
    and the buffers would take much memory.
    """

    name = "cudagraph"
    devices = ("cuda",)
    lends = True

    def takes(self, examples: list[Tensor], *, in_place: bool) -> bool:
        """Return whether there are few lanes, and arguments that stay as they are."""
        return not in_place and len(examples[0]) <= _CAPTURED_LANES

    def make(self, step: Any, examples: list[Tensor], make_loop: MakeLoop, *, in_place: bool) -> nn.Module:
        """Capture the step as CUDA graphs and build the loop around them."""
        return make_loop(Captured(step, examples))


EAGER = "eager"
BACKENDS: tuple[Backend, ...] = (Graph(), TorchScript(), CudaGraph())


def fastest(device: str, failed: Iterable[str] = ()) -> str:
    """The name of the last backend for a type of device that comes before all that failed."""
    name = EAGER
    for backend in BACKENDS:
        if backend.name in failed:
            break
        if device in backend.devices:
            name = backend.name
    return name


class WrongRecordingError(Exception):
    """A recorded step that computes other numbers than the step itself; nothing that it has computed may be used."""


class BuiltLoop(NamedTuple):
    """A loop and the backend that built it (None: eager)."""

    backend: Backend | None
    run: nn.Module

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.backend.name if self.backend else EAGER


class Recorded:
    """A function of a list of tensors that runs on the fastest backend after some calls with equal shapes.

    Several threads may run it at a time; they wait for one another only while it is recorded.

    Args:
        function: what is recorded.
        make_loop: builds the loop that is run, from the function or from its recording; the loop is a module that
            TorchScript can translate.
        patience: factor on the number of calls before the first recording, because that one loads PyTorch's tracer,
            which takes seconds. Infinity: never record.
        in_place: whether a recording may overwrite its arguments; these are then lists of tensors, and all steps are
            checked. Otherwise it returns inference tensors, which are a tenth faster for small models.

    Attributes:
        ever: whether it is ever recorded.
        calls: by name of a backend, how often the function has been called on it.
        failed: by name of a backend that was not taken, why, in one line.
        checks: by shapes, how often `check` has compared their recording in this cell.
    """

    def __init__(self, function: Function, make_loop: MakeLoop, *, patience: float = 1, in_place: bool = False) -> None:
        self._function = function
        self._make_loop = make_loop
        self._patience = patience
        self.ever = patience < math.inf
        self._in_place = in_place
        self._eager = BuiltLoop(None, make_loop(function))
        self._unrecorded_calls: dict[Any, int] = {}
        self._recorded: dict[Any, BuiltLoop] = {}
        self._examples: dict[Any, list[Callable[[], Tensor]]] = {}
        self.checks: Counter[Any] = Counter()
        self.calls: Counter[str] = Counter()
        self._recording, self._no_unrecorded_call, self._running = threading.Lock(), threading.Condition(), 0
        self.failed: dict[str, str] = {}

    def run(self, examples: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        """Run the loop on `args`, in the fastest way that is ready.

        Args:
            examples: tensors of the shapes that the function gets, and with numbers such as it gets.
            calls: number of times that the loop calls the function.
        """
        at = tuple(t.shape for t in examples)
        if at not in self._recorded and self._begin_unrecorded(at, examples, calls, args):
            try:
                return self._call(self._eager, args)
            finally:
                self._end_unrecorded()
        with self._no_unrecorded_call:
            self.calls[self._recorded[at].name] += calls
        return self._call(self._recorded[at], args)

    def check(self, times: float) -> None:
        """Compare one call on each recording with the same call eagerly, if that was done less than so many times.

        The recording was compared when it was made. What it reads may have changed since, such as memory that a CUDA
        graph has the address of and that nobody holds any more.

        Raises:
            WrongRecordingError: they differ beyond rounding.
        """
        for at, built in tuple(self._recorded.items()):
            if at not in self._examples or self.checks[at] >= times:
                continue
            self.checks[at] += 1
            examples = [make() for make in self._examples[at]]
            expected = self._function(_copies(examples))
            results = self._call(built, [_copies(examples)], *built.run.children())
            if not all(map(_agree, results, expected)):
                self._recorded.clear()  # the next cell of this process records it anew
                raise WrongRecordingError(
                    f"a step that was recorded for the backend {built.name} has come to compute other numbers than "
                    "the step itself, so what this cell computed is wrong and is thrown away. Please report it; "
                    "`--executor debug` trains without recordings"
                )

    def _call(self, built: BuiltLoop, args: Any, run: LoopFunction | None = None) -> list[Tensor]:
        """Run a loop, or its step alone, in the context that its backend needs."""
        if built.backend is None:
            unrecorded: list[Tensor] = built.run(*args)
            return unrecorded
        with torch.no_grad() if self._in_place else torch.inference_mode(), built.backend.running():
            results = (run or built.run)(*args)
            return _copies(results) if built.backend.lends else results

    def _begin_unrecorded(self, at: Any, examples: list[Tensor], calls: int, args: Any) -> bool:
        """Return whether the function should still run unrecorded; otherwise record it now.

        It is recorded while no thread runs it, because tracing changes what calling a module does in all threads.
        """
        with self._recording:
            if at in self._recorded:
                return False
            with self._no_unrecorded_call:
                enough = _RECORD_AFTER * (1 if self._recorded else self._patience)
                if examples[0].device.type == "cuda":
                    enough /= _LESS_ON_GPU
                if self._unrecorded_calls.get(at, 0) < enough:
                    self._unrecorded_calls[at] = self._unrecorded_calls.get(at, 0) + calls
                    self.calls[EAGER] += calls
                    self._running += 1
                    return True
                self._no_unrecorded_call.wait_for(lambda: not self._running)
            self._recorded[at] = built = self._record(examples, args if self._in_place else None)
            if built.backend is not None:
                self._examples[at] = [_without_numbers(t) for t in examples]
            return False

    def _end_unrecorded(self) -> None:
        with self._no_unrecorded_call:
            self._running -= 1
            self._no_unrecorded_call.notify_all()

    def _record(self, examples: list[Tensor], args: Any = None) -> BuiltLoop:
        """Try the backends in order, each on the step of the backend before it.

        The loop of the last backend that gives eager's bytes is returned.

        Args:
            args: arguments of the loop if it may overwrite them; then all its steps are compared, too.
        """
        expected = self._function(_copies(examples))
        expected_all = self._call(self._eager, [_copies(arg) for arg in args]) if args else None
        fastest_loop, step = self._eager, self._function
        for backend in BACKENDS:
            if examples[0].device.type not in backend.devices or not backend.takes(examples, in_place=self._in_place):
                continue
            try:
                loop = backend.make(step, examples, self._make_loop, in_place=self._in_place)
                built, (step,) = BuiltLoop(backend, loop), loop.children()
                _compare(self._call(built, [_copies(examples)], step), expected)
                if args:
                    _compare(self._call(built, [_copies(arg) for arg in args]), expected_all)
            except Exception as error:  # the next simpler backend does it, whatever is wrong with this one
                if gpu_memory_ran_out(error):  # but for memory, of which a smaller cohort needs less
                    raise
                self.failed.setdefault(backend.name, one_line(error))
                break
            fastest_loop = built
        return fastest_loop


def _with_other_numbers(example: Tensor) -> Tensor:
    """An example in reverse order, and a single float plus 1.

    If the function reads a number in Python, or loses an input, the recording then gives other bytes than eager and is
    refused.
    """
    if example.dim():
        return example.flip(0)
    return example + 1 if example.is_floating_point() else example


def one_line(error: Exception) -> str:
    """The type of an error and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def _without_numbers(example: Tensor) -> Callable[[], Tensor]:
    """A function that makes a tensor like an example, with other numbers, so that no example is kept in memory.

    Whole numbers stay as they are, as labels and positions have to lie in their ranges. The others are small and
    positive, as a variance or a share has to be.
    """
    if not example.is_floating_point():
        kept = example.clone()
        return lambda: kept
    shape, strides, dtype, device = example.shape, example.stride(), example.dtype, example.device
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if example.numel() else 0

    def make() -> Tensor:
        numbers = torch.arange(extent, device=device) % 997 + 1
        return (numbers / 1e4).to(dtype).as_strided(shape, strides)

    return make


def _agree(result: Tensor, expected: Tensor) -> bool:
    """Whether two results are equal up to rounding."""
    if not expected.is_floating_point():
        return torch.equal(result, expected)
    largest = float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * largest
    return torch.allclose(result, expected, rtol=0, atol=tolerance, equal_nan=True)


def _compare(results: list[Tensor], expected: list[Tensor] | None) -> None:
    assert expected is not None
    if not all(
        a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(results, expected, strict=True)
    ):
        raise ValueError("its bytes are not eager's")
