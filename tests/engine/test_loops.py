"""Loops around a step, in Python and recorded: when they are recorded and when not; and how threads share jobs."""

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, fx, nn

from bench.engine import step_inputs
from bench.engine.backends import backends
from bench.engine.backends.backends import Recorded, TorchScript
from bench.engine.backends.loops import ClientLoop, CohortLoop
from bench.engine.backends.recording import of_list, record
from bench.engine.device import side_by_side
from tests.engine.problems import assert_same, everything, run, toy
from tests.warm import PATIENCE


@pytest.mark.parametrize("executor", ["cohort", pytest.param("sequential", marks=pytest.mark.long)])
def test_a_training_in_chunks_of_a_step_has_the_same_bytes(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python and recorded. Clients of unequal size come and go in the lanes, each with a context of its own."""
    states = []
    for in_a_chunk, record_after in itertools.product((step_inputs.GATHER, 1), (10**9, 2)):  # 1: one step
        monkeypatch.setattr(step_inputs, "GATHER", in_a_chunk)
        monkeypatch.setattr(backends, "_RECORD_AFTER", record_after)
        federation = toy("ditto", executor=executor)
        run(federation, 3)
        assert (federation.engine.calls.keys() > {"eager"}) == (record_after == 2)
        states.append(everything(federation))
    for state in states[1:]:
        assert_same(state, states[0], tolerance=0)


class Adding(nn.Module):
    """A recorded step: lane = lane + context. Notes where the lanes are that it gets and returns."""

    owned = (True,)

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, int]] = []

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        """The new lanes."""
        lanes = tensors[0] + tensors[2]
        self.places.append((tensors[0].data_ptr(), lanes.data_ptr()))
        return [lanes]


def test_clients_are_loaded_in_place_only_into_what_the_recorded_step_has_returned() -> None:
    """What a step returned before it was recorded may be the lanes' contexts themselves."""
    values, contexts = ([[torch.tensor([float(i)])] for i in numbers] for numbers in ((0, 0, 0), (1, 10, 100)))
    moves = [[(0, 2)], [], [(1, 0)]], [[], [(1, 1)], [(0, 2), (1, 0)]]
    step, like = Adding(), [torch.zeros(2, 1) for _ in range(3)]
    recorded = of_list(record(lambda tensors: [tensors[0] + tensors[2]], like))
    for loop in (CohortLoop(step), TorchScript().make(recorded, like, CohortLoop, in_place=False)):
        lanes, rows = torch.tensor([[5.0], [7.0]]), torch.zeros(3, 1)
        (found,) = loop(*moves, values, contexts, [rows], [lanes], [lanes], [torch.zeros(3, 2, 1)], [])
        assert found.tolist() == [[300.0], [1.0]]
        assert rows.tolist() == [[1.0], [21.0], [300.0]]
    assert step.places[2][0] == step.places[1][1]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_function_that_decides_by_numbers_is_never_recorded(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)

    def away_from_zero(tensors: list[Tensor]) -> list[Tensor]:
        by = tensors[1].clone().requires_grad_()
        (one,) = torch.autograd.grad(by.sum(), [by])
        return [tensors[0] + one if tensors[0].sum() >= 0 else tensors[0] - one]

    recorded, like = Recorded(away_from_zero, ClientLoop, in_place=in_place), [torch.zeros(2), torch.zeros(2)]
    for start in (0.0, -1.0, 1.0, -2.0):
        (found,) = recorded.run(like, 3, [torch.full((2,), start)], [torch.ones(3, 2)], [])
        assert found.tolist() == [start - 3 if start < 0 else start + 3] * 2


def test_a_recording_that_kept_numbers_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are read through numpy, which PyTorch does not notice."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)

    def weighted(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0] + tensors[1] * torch.from_numpy(1 / tensors[1].numpy())]

    recorded, like = Recorded(weighted, ClientLoop, in_place=True), [torch.zeros(2), torch.tensor([1.0, 2.0])]
    for given in ([[1.0, 2.0]] * 3, [[3.0, 4.0]], [[5.0, 1.0]]):
        state = recorded.run(like, len(given), [torch.zeros(2)], [torch.tensor(given)], [])
        assert state[0].tolist() == pytest.approx([len(given)] * 2)


@pytest.mark.parametrize("in_place", [False, True])
def test_operations_that_torchscript_takes_for_others_are_played_by_python(
    in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript takes `True` for 1 and the product for a whole number, whose complement is -2."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)

    def where_not_positive(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0] + (~((tensors[1] > 0) * True)).to(tensors[1].dtype)]

    recorded, like = Recorded(where_not_positive, ClientLoop, in_place=in_place), [torch.zeros(2), torch.ones(2)]
    for _ in range(3):
        (found,) = recorded.run(like, 3, [torch.zeros(2)], [torch.tensor([[1.0, -1.0]] * 3)], [])
        assert found.tolist() == [0, 3]
    (made,) = recorded._recorded.values()
    assert isinstance(made.run, ClientLoop)
    assert isinstance(made.run.step, fx.GraphModule)  # still recorded as a graph
    assert recorded.failed.keys() == {"torchscript"}


def test_threads_run_it_side_by_side_and_only_one_of_them_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_RECORD_AFTER", 4)
    both = threading.Barrier(2, timeout=PATIENCE)
    by_itself: list[int] = []  # filled while it is recorded, and while one step and then all are checked

    def add(tensors: list[Tensor]) -> list[Tensor]:
        if recorded._running == 0:
            by_itself.append(1)
        else:
            both.wait()
        return [tensors[0] + tensors[1]]

    recorded = Recorded(add, ClientLoop, in_place=True)
    like = [torch.zeros(2), torch.zeros(2)]

    def job() -> list[float]:
        state = [torch.zeros(2)]
        for _ in range(5):
            state = recorded.run(like, 1, state, [torch.ones(1, 2)], [])
        return state[0].tolist()

    assert side_by_side(2, [job, job], 2) == [[5.0, 5.0], [5.0, 5.0]]
    assert len(recorded._recorded) == 1
    assert len(by_itself) == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_jobs_are_done_once_and_their_results_are_in_order(threads: int) -> None:
    done: list[int] = []

    def job(i: int) -> int:
        done.append(i)
        return i * i

    assert side_by_side(threads, [lambda i=i: job(i) for i in range(20)], 20) == [i * i for i in range(20)]
    assert sorted(done) == list(range(20))
    assert side_by_side(threads, [], 0) == []


def test_a_job_is_done_while_the_next_is_made() -> None:
    begun = threading.Event()

    def jobs() -> Iterator[Callable[[], bool]]:
        yield lambda: begun.set() or True
        assert begun.wait(PATIENCE)
        yield lambda: True

    assert side_by_side(2, jobs(), 2) == [True, True]


@pytest.mark.parametrize("wrong", ["here", "elsewhere"])
def test_an_error_in_any_thread_is_raised_and_no_job_goes_on_after_it(wrong: str) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)
    running: list[int] = []

    def job() -> None:
        here = threading.current_thread() is threading.main_thread()
        running.append(1)
        both.wait()
        if here == (wrong == "here"):
            running.pop()
            raise ZeroDivisionError
        running.pop()

    with pytest.raises(ZeroDivisionError):
        side_by_side(2, [job, job], 2)
    assert not running
