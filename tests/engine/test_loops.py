"""A schedule of steps compared with sums by hand, in Python and as TorchScript; and how threads share jobs."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, fx

from bench.engine.backends import backends
from bench.engine.backends.backends import Recorded
from bench.engine.backends.loops import ClientLoop, CohortLoop, EvalLoop
from bench.engine.device import side_by_side
from bench.engine.lane_schedule import pack
from tests.warm import PATIENCE

LENGTHS = [3, 1, 0, 2, 2]


def step(tensors: list[Tensor]) -> list[Tensor]:
    """A step: what a lane holds, plus its input times its context, plus a fixed number; and a count of the steps."""
    sums, count, inputs, context, fixed = tensors
    return [sums + inputs * context + fixed, count + 1]


def run_schedule(run: Callable[..., list[Tensor]], chunk: int) -> list[Tensor]:
    """Clients of unequal length in two lanes, `chunk` steps per call."""
    schedule = pack(LENGTHS, 2)
    rows = [torch.arange(5.0) * 100, torch.zeros(5)]
    contexts = [[torch.tensor(10.0**client)] for client in range(5)]
    lanes, context = [t[[0, 0]] for t in rows], [torch.full((2,), float("nan"))]
    inputs = torch.from_numpy(schedule.step + 1).to(torch.float32)
    for start in range(0, len(inputs), chunk):
        steps = slice(start, start + chunk)
        starting, store = schedule.load[steps], schedule.store[steps]
        lanes = run(
            starting,
            [pairs_of(p) for p in starting],
            [pairs_of(p) for p in store],
            rows,
            contexts,
            lanes,
            context,
            [inputs[steps]],
            [torch.tensor(0.5)],
        )
    return rows


def pairs_of(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


@pytest.fixture(params=["python", "torchscript"])
def loop(request: pytest.FixtureRequest) -> Callable[..., list[Tensor]]:
    """The loop around a step, in Python and as TorchScript."""
    if request.param == "python":
        return CohortLoop(step)
    recorded = Recorded(step, CohortLoop)
    made = recorded._record([torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.tensor(0.5)])
    if made.name != "torchscript":
        pytest.skip(f"TorchScript is out of order: {recorded.failed}")
    assert isinstance(made.run, torch.jit.ScriptModule)
    return made.run


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_every_client_takes_its_steps_from_its_own_state_with_its_own_context(
    loop: Callable[..., list[Tensor]], chunk: int
) -> None:
    sums, counts = run_schedule(loop, chunk)
    # Client i begins at 100 i and in step k (from 1) adds k 10^i + 0.5; client 2 has no steps.
    assert sums.tolist() == [0 + 6 * 1 + 1.5, 100 + 1 * 10 + 0.5, 200, 300 + 3 * 1000 + 1, 400 + 3 * 10000 + 1]
    assert counts.tolist() == LENGTHS


def test_a_function_is_recorded_after_some_calls_with_equal_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_RECORD_AFTER", 4)
    look = Recorded(lambda tensors: [torch.einsum("ld,lsd->ls", tensors[0], tensors[2]) + tensors[1]], EvalLoop)
    found = []
    for groups in (3, 2, 1):  # recorded in the third run, after five calls
        weights = [torch.full((2,), float(i)) for i in range(2 * groups)]
        buffers = [torch.tensor([0.5]) for _ in weights]
        x = torch.arange(groups * 2 * 3 * 2.0).view(groups, 2, 3, 2)
        like = [torch.zeros(2, 2), torch.zeros(2, 1), x[0]]
        for _ in range(2 if groups == 1 else 1):
            found.append(look.run(like, groups, weights, buffers, x))
            assert len(look._recorded) == (groups == 1)
    # Model i is (i, i) and 0.5; its sample k is (12 g + 6 l + 2 k, the next number) for its group g and lane l.
    sums = [[[2 * (6 * i + 2 * k) + 1 for k in range(3)] for i in (2 * g, 2 * g + 1)] for g in range(3)]
    expected = [(torch.tensor(sums[g]) * torch.tensor([[2.0 * g], [2.0 * g + 1]]) + 0.5) for g in range(3)]
    for groups, outs in zip((3, 2, 1, 1), found, strict=True):
        assert len(outs) == groups
        assert all(torch.equal(out, right) for out, right in zip(outs, expected, strict=False))


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


def test_only_the_first_shape_is_waited_for_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    recorded = Recorded(lambda tensors: [tensors[0] + tensors[1]], ClientLoop, patience=3)
    known = []
    for width in (2, 5):
        for _ in range(7):
            recorded.run([torch.zeros(width)] * 2, 1, [torch.zeros(width)], [torch.ones(1, width)], [])
            known.append(len(recorded._recorded))
    assert known == [*[0] * 6, 1, *[1] * 2, *[2] * 5]


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
