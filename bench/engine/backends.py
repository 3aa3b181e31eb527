"""Ways to run a step, each faster and more fragile than the one before it, and the choice between them.

A step is a function of a list of tensors. `eager` calls it as it is. `graph` plays back the tensor operations that it
comes down to (`bench/engine/recording.py`). `torchscript` does the same without Python between the operations, and
with the loop around them (`bench/engine/loops.py`). A backend is taken only if it gives eager's bytes; one that fails,
at its import or later, leaves the work to the one before it.
"""

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Function = Callable[[list[Tensor]], list[Tensor]]
Around = Callable[[Any], nn.Module]
Run = Callable[..., list[Tensor]]

_RECORD_AFTER = 100  # calls; recording costs about as much as so many save


class Backend(Protocol):
    """A way to run a step.

    Attributes:
        name: for people.
        devices: types of devices it works on.
    """

    name: str
    devices: tuple[str, ...]

    def make(self, step: Any, like: list[Tensor], around: Around, *, in_place: bool) -> nn.Module:
        """Build the loop `around` this backend's version of the step; that version is the loop's only submodule.

        If anything is raised, the backend is not used.

        Args:
            step: the step of the backend before; of the first one, the function itself.
            like: examples of the tensors that the step gets.
            around: see `Recorded`.
            in_place: see `Recorded`.
        """

    def playing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the loop has to run."""


class Graph:
    """The tensor operations, played back in Python."""

    name = "graph"
    devices: tuple[str, ...] = ("cpu", "cuda")

    def make(self, step: Any, like: list[Tensor], around: Around, *, in_place: bool) -> nn.Module:
        from bench.engine.recording import of_list, record  # loads PyTorch's tracer
        from bench.engine.tidying import update_in_place

        # The example is the real input in reverse order. If the function read a number in Python, or lost an input,
        # the recording then gives other bytes than eager and is refused.
        recorded = record(step, [t.flip(0) if t.dim() else t for t in like])
        return around(of_list(update_in_place(recorded) if in_place else recorded))

    def playing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class TorchScript:
    """Runs the operations and the loop around them in one call, so that threads do not wait for Python.

    It is not used on GPUs, where it gains nothing.
    """

    name = "torchscript"
    devices: tuple[str, ...] = ("cpu",)

    def make(self, step: Any, like: list[Tensor], around: Around, *, in_place: bool) -> nn.Module:
        from torch.jit import script

        from bench.engine.recording import named_by_packet

        with warnings.catch_warnings():
            # What is to take its place (torch.compile) needs a C++ compiler and longer than most cells of such models.
            warnings.filterwarnings("ignore", "`torch.jit")
            scripted: nn.Module = script(around(named_by_packet(step)))
        return scripted

    def playing(self) -> contextlib.AbstractContextManager[None]:
        """TorchScript without its optimizer, which would replace some operations by others that round differently."""
        from torch.jit import optimized_execution  # type: ignore[attr-defined]

        found: contextlib.AbstractContextManager[None] = optimized_execution(False)
        return found


EAGER = "eager"
BACKENDS: tuple[Backend, ...] = (Graph(), TorchScript())


def fastest(device: str, failed: Iterable[str] = ()) -> str:
    """The name of the last backend for a type of device that comes before all that failed."""
    found = EAGER
    for backend in BACKENDS:
        if backend.name in failed:
            break
        if device in backend.devices:
            found = backend.name
    return found


class Made(NamedTuple):
    """A loop and the backend that made it (None: eager)."""

    backend: Backend | None
    run: Run

    @property
    def name(self) -> str:
        """Of the backend."""
        return self.backend.name if self.backend else EAGER


class Recorded:
    """A function of a list of tensors that runs on the fastest backend after some calls with equal shapes.

    Several threads may run it at a time; they wait for one another only while it is recorded.

    Args:
        function: what is recorded.
        around: builds the loop that is run, from the function or from its recording; the loop is a module that
            TorchScript can translate.
        patience: factor on the number of calls before the first recording, because that one loads PyTorch's tracer,
            which takes seconds. Infinity: never record.
        in_place: whether a recording may overwrite its arguments; these are then lists of tensors, and all steps are
            checked. Otherwise it returns inference tensors, which are a tenth faster for small models.

    Attributes:
        ever: whether it is ever recorded.
        failed: by name of a backend that was not taken, why, in one line.
    """

    def __init__(self, function: Function, around: Around, *, patience: float = 1, in_place: bool = False) -> None:
        self._function = function
        self._around = around
        self._patience = patience
        self.ever = patience < math.inf
        self._in_place = in_place
        self._eager = Made(None, around(function))
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, Made] = {}
        self._door, self._inside, self._running = threading.Lock(), threading.Condition(), 0
        self.failed: dict[str, str] = {}

    def run(self, like: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        """Run it on `args`, in which the function is called so many times.

        Args:
            like: tensors of the shapes that the function gets, and with numbers such as it gets.
        """
        at = tuple(t.shape for t in like)
        if at not in self._recorded and self._comes_in(at, like, calls, args):
            try:
                return self._eager.run(*args)
            finally:
                self._goes_out()
        return self._play(self._recorded[at], args)

    def _play(self, made: Made, args: Any, run: Run | None = None) -> list[Tensor]:
        """Run a loop, or its step alone, in the context that its backend needs."""
        if made.backend is None:
            return made.run(*args)
        with torch.no_grad() if self._in_place else torch.inference_mode(), made.backend.playing():
            return (run or made.run)(*args)

    def _comes_in(self, at: Any, like: list[Tensor], calls: int, args: Any) -> bool:
        """Return whether the function should still run unrecorded. Otherwise it is recorded now, while no thread runs
        it, because tracing changes what calling a module does in all threads."""
        with self._door:
            if at in self._recorded:
                return False
            with self._inside:
                if self._calls.get(at, 0) < _RECORD_AFTER * (1 if self._recorded else self._patience):
                    self._calls[at] = self._calls.get(at, 0) + calls
                    self._running += 1
                    return True
                self._inside.wait_for(lambda: not self._running)
            self._recorded[at] = self._record(like, args if self._in_place else None)
            return False

    def _goes_out(self) -> None:
        with self._inside:
            self._running -= 1
            self._inside.notify_all()

    def _record(self, like: list[Tensor], args: Any = None) -> Made:
        """Try the backends in order, each on the step of the one before, and return the loop of the last one that gives
        eager's bytes.

        Args:
            args: arguments of the loop if it may overwrite them; then all its steps are compared, too.
        """
        right = self._function(_copies(like))
        rights = self._play(self._eager, [_copies(one) for one in args]) if args else None
        found, step = self._eager, self._function
        for backend in BACKENDS:
            if like[0].device.type not in backend.devices:
                continue
            try:
                loop = backend.make(step, like, self._around, in_place=self._in_place)
                made, (step,) = Made(backend, loop), loop.children()
                _compare(self._play(made, [_copies(like)], step), right)
                if args:
                    _compare(self._play(made, [_copies(one) for one in args]), rights)
            except Exception as error:  # the next simpler backend does it, whatever is wrong with this one
                self.failed.setdefault(backend.name, one_line(error))
                break
            found = made
        return found


def one_line(error: Exception) -> str:
    """The type of an error and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def _compare(found: list[Tensor], right: list[Tensor] | None) -> None:
    assert right is not None
    if not all(
        a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(found, right, strict=True)
    ):
        raise ValueError("its bytes are not eager's")
