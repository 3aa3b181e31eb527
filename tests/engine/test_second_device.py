"""Training on a simulated second device: tensors of two devices are never mixed, and the processor hardly waits for it.

This needs no GPU, and it tests neither the speed nor the rounding of one.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.engine import step_inputs
from bench.engine.backends.backends import Recorded
from bench.engine.device import make_deterministic
from bench.engine.lane_schedule import Packing, narrowed
from bench.engine.step import Recipe
from bench.errors import UserError, shortage
from bench.method import cross_entropy
from bench.models.network import with_head
from bench.plugin import MODELS
from bench.tensors import gpu_memory_ran_out
from tests.engine.problems import assert_same, everything, personal, run, toy
from tests.engine.second_device import NAME, SecondDevice, There
from tests.methods.resume import assert_resumes

SIZES = [13, 7, 1, 0, 10, 6]  # in batches of four; the short batches have three, two and two samples


def _both(method: str, versions: int, *, offload: bool = False, **settings: Any) -> Any:
    """Train on the CPU and on the second device, and check that states and scores agree; returns the second
    federation and its device."""
    here = toy(method, **settings)
    expected = run(here, versions)
    with SecondDevice() as device:
        there = toy(method, device=NAME, offload=offload, **settings)
        found = run(there, versions)
        assert {isinstance(tensor, There) for tensor in everything(there).values()} == {not offload}
        assert_same(everything(there), everything(here))
    assert [row["value"] for row in found.metrics] == pytest.approx([row["value"] for row in expected.metrics])
    assert found.clients == expected.clients
    assert not there.engine.fallbacks
    return there, device


def test_the_device_forbids_what_a_gpu_forbids_and_counts_waits() -> None:
    with SecondDevice() as device:
        there, here = torch.ones(3, device=NAME), torch.ones(3)
        with pytest.raises(RuntimeError, match="two devices"):
            there + here
        assert (there + 1).device.type == (there + torch.tensor(1.0)).device.type == NAME
        assert device.waits == 0
        assert float(there.sum()) == 3.0
        assert device.waits == 1
        device.limit = device.live + 1000
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1000, device=NAME)


def test_what_is_copied_in_passing_is_there_after_a_wait() -> None:
    with SecondDevice():
        place, there = torch.zeros(2), torch.ones(2, device=NAME)
        place.copy_(there, non_blocking=True)
        assert place.isnan().all()
        there.sum().item()
        assert place.tolist() == [1.0, 1.0]


CORNERS: list[dict[str, Any]] = [
    {"executor": "sequential"},
    {"executor": "sequential", "model": "test_norm"},
    {"model": "test_norm", "batchnorm": "local", "participation": 0.5},
    {"participation": 0.5, "unselected": "broadcast"},
]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("scd", {}),
        ("knnper", {"model": "test_norm", "sizes": SIZES}),  # it evaluates by features; one client has no samples
        *(pytest.param("scd", corner, marks=pytest.mark.long) for corner in CORNERS),
    ],
    ids=str,
)
def test_it_trains_there_as_here(method: str, settings: dict[str, Any]) -> None:
    """`test_padding` has all methods, with BatchNorm and short batches."""
    _both(method, 2, **settings)


@pytest.mark.long
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("method", ["scd", "pgfed", "hypcluster"])
def test_models_that_rest_on_the_host_train_the_same(method: str, executor: str) -> None:
    """Nothing of them stays on the device between two rounds."""
    there, device = _both(method, 2, offload=True, executor=executor, model="mlp")
    assert there.path["models"] == "cpu"
    pools = [there.device_data.local, there.device_data.pool("public")]
    samples = sum(tensor.here.nbytes for pool in pools for tensor in (pool.x, pool.y))
    constants = 2.1 * there.server.initial_model().weights.nbytes  # of SCD's loss; five clients have a model
    assert device.live < samples + constants


@pytest.mark.long
def test_clients_whose_models_rest_on_the_host_come_in_cohorts() -> None:
    """Only as many as there are lanes are on the device at a time; all clients together would need more memory."""
    peaks = {}
    for lanes in (2, 6):
        with SecondDevice() as device:
            federation = toy("ditto", device=NAME, offload=True, model="mlp")
            federation.engine.lanes = lanes
            found = run(federation, 2)
        peaks[lanes] = device.peak
        assert found.clients == run(toy("ditto", model="mlp"), 2).clients
    assert peaks[2] < 0.6 * peaks[6]


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "trainings"), [("fedavg", 1), ("ditto", 2), ("scd", 2), ("pgfed", 2), ("hypcluster", 2)]
)
def test_a_round_waits_once_for_each_training(method: str, trainings: int) -> None:
    """The processor reads only whether all values are finite; and one number more if clients decide by it."""
    with SecondDevice() as device:
        for offload in (False, True):
            federation = toy(method, device=NAME, offload=offload)
            run(federation, 2)
            before = device.waits
            federation.advance()
            assert device.waits - before == trainings


@pytest.mark.parametrize("executor", ["cohort", "sequential"])
@pytest.mark.parametrize("model", ["test_linear", pytest.param("test_norm", marks=pytest.mark.long)])
def test_a_training_uploads_the_same_number_of_arrays_however_long_it_is(
    model: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the processor waits for each copy. With BatchNorm, short batches form separate phases."""
    uploads = []
    for epochs, in_a_chunk in ((1, step_inputs.GATHER), (1, 1), (3, 1)):  # 1: one step
        monkeypatch.setattr(step_inputs, "GATHER", in_a_chunk)
        with SecondDevice() as device:
            federation = toy(
                "fedavg", device=NAME, sizes=[9, 8, 7, 6], batch_size=4, epochs=epochs, model=model, executor=executor
            )
            before = device.uploads
            federation.advance()
        uploads.append(device.uploads - before)
    assert uploads == [{"cohort": 13, "sequential": 4 * 8}[executor]] * 3


def test_an_evaluation_waits_once() -> None:
    """An evaluation of Ditto's generic, personalized and local models."""
    with SecondDevice() as device:
        federation = toy("ditto", device=NAME)
        federation.advance()
        before = device.waits
        assert {row["metric"] for row in federation.evaluate().metrics} == {"gm", "pm", "lm"}
        assert device.waits - before == 1


@pytest.mark.parametrize("offload", [False, True])
def test_a_trained_vector_begins_where_one_that_lies_alone_does(offload: bool) -> None:
    """At a multiple of 16 bytes, though 15 weights of 8 bytes are none: without a gap, every second client would be
    elsewhere."""
    with SecondDevice():
        federation = toy("local", device=NAME, offload=offload)
        assert federation.server.initial_model().weights.nbytes % 16 == 8
        rows = federation.device_data.empty_rows(3, torch.ones(15, device=federation.device_data.home))
        assert [row.data_ptr() % 16 for row in rows.unbind()] == [0, 0, 0]
        assert (rows.shape, rows.device) == ((3, 15), federation.device_data.device)
        federation.advance()
        if not offload:
            trained = [w for i, w in personal(federation).items() if len(federation.device_data.partition.train[i])]
            assert len({w.here.untyped_storage()._cdata for w in trained if isinstance(w, There)}) < len(trained)
            assert [w.data_ptr() % 16 for w in trained] == [0] * len(trained)


@pytest.mark.long
def test_a_state_comes_back_to_the_device() -> None:
    with SecondDevice():
        federation = assert_resumes("scd", {"device": NAME}, 1, 2)
        assert all(isinstance(tensor, There) for tensor in everything(federation).values())


def test_cohorts_become_smaller_where_memory_runs_out() -> None:
    """Twelve lanes take too much memory for the ten clients; in six lanes they train."""
    ten: dict[str, Any] = {"sizes": [4] * 10, "batch_size": 8}
    here = toy("fedavg", **ten)
    expected = run(here, 2)
    with SecondDevice() as device:
        there = toy("fedavg", device=NAME, **ten)
        assert there.engine.lanes == 64
        device.limit = device.live + 25_000
        found = run(there, 2)
        assert_same(everything(there), everything(here))
    assert there.engine.lanes == 6
    assert device.peak <= device.limit
    assert any("memory ran out" in warning for warning in there.warnings)
    assert found.clients == expected.clients


@pytest.mark.parametrize(
    ("model", "lanes"), [("test_linear", [4] * 4 + [2] * 2 + [1] * 2), ("test_norm", [4] * 2 + [3] * 2 + [1] * 2)]
)
def test_a_call_has_as_many_lanes_as_clients_that_train(
    model: str, lanes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of 13, 7, 9 and 5 samples, in batches of four. With BatchNorm a last batch of one sample is dropped,
    and the batch of three samples of the client with 7 is padded beside the others'."""
    found: list[int] = []

    def noted(packing: Packing) -> list[Packing]:
        parts = narrowed(packing)
        found.extend(part.row.shape[1] for part in parts for _ in part.row)
        return parts

    monkeypatch.setattr("bench.engine.lane_schedule.narrowed", noted)
    with SecondDevice():
        toy("fedavg", device=NAME, sizes=[13, 7, 9, 5], model=model).advance()
    assert found == lanes


def branching(model: Any, values: Any, batch: Any, ctx: Any) -> torch.Tensor:
    """A loss that branches on a number, which cannot be mapped over clients."""
    loss = cross_entropy(model, values, batch, ctx)
    return loss if loss > 0 else -loss


def test_what_cannot_be_mapped_is_an_error_on_a_gpu_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("methods.fedavg.cross_entropy", branching)
    with SecondDevice():
        with pytest.raises(UserError, match=r"branching cannot be mapped over clients: .*--allow-fallback branching"):
            run(toy("fedavg", device=NAME), 1)
        there = toy("fedavg", device=NAME)
        there.engine.allow_fallback = ["graph", "branching"]
        run(there, 1)
        assert there.engine.fallbacks == ["branching"]


def test_on_a_gpu_a_step_that_cannot_be_recorded_is_an_error_unless_allowed() -> None:
    with SecondDevice():
        there = toy("fedavg", device=NAME)
        run(there, 1)
        step = next(iter(there.engine._trainer.steps.by_recipe.values()))
        step.failed["graph"] = "ValueError: its bytes are not eager's"
        with pytest.raises(UserError, match=r"the backend graph failed: ValueError: .*--allow-fallback graph takes"):
            run(there, 1)
        there.engine.allow_fallback = ["graph"]
        run(there, 1)
        assert (there.engine.failed, there.engine.steps_are) == (["graph"], "fallen back")


def test_on_a_gpu_a_server_s_steps_that_are_never_recorded_are_an_error_unless_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recipe, "recordable", property(lambda _: False))
    with SecondDevice():
        with pytest.raises(UserError, match=r"cannot be recorded.*--allow-fallback") as refused:
            run(toy("feddf", device=NAME), 1)
        there = toy("feddf", device=NAME)
        name = str(refused.value).split("--allow-fallback ")[1].split()[0].strip("'")
        there.engine.allow_fallback = [name]
        run(there, 1)
        assert there.engine.fallbacks == [name]
        [notice] = [text for text in there.warnings if name in text]
        assert " runs one by one: " in notice


def test_memory_that_cufft_lacks_is_memory() -> None:
    error = RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED")
    assert gpu_memory_ran_out(error)
    assert shortage(error).startswith("out of memory")
    assert not gpu_memory_ran_out(RuntimeError("cuFFT error: CUFFT_INVALID_SIZE"))


def test_a_gpu_s_settings_go_through_the_current_interface() -> None:
    """PyTorch warns about the older flags, and raises an error if both interfaces are used."""
    cuda: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    places = cuda, cudnn.conv, cudnn.rnn
    deterministic: Any = torch.utils.deterministic
    before, filled = [place.fp32_precision for place in places], deterministic.fill_uninitialized_memory
    try:
        for precision, expected in (("tf32", "tf32"), ("fp32", "ieee"), ("bf16", "ieee")):
            make_deterministic(torch.device("cuda"), precision)
            assert [place.fp32_precision for place in places] == [expected] * 3
        assert not deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        deterministic.fill_uninitialized_memory = filled
        for place, value in zip(places, before, strict=True):  # convolutions and RNNs must agree, or exports fail
            place.fp32_precision = value


class Doubled(nn.BatchNorm1d):
    """A layer that computes something else than its base."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice the normalised samples."""
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("groups", "dtype", "tolerance"), [(1, "float64", 1e-9), (2, "float64", 1e-9), (2, "float32", 1e-4)]
)
def test_layers_that_lanes_do_not_take_train_as_on_a_cpu(
    groups: int, dtype: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cohort has no convolution with many groups: those clients train one after another, and a notice says so. What
    dropout draws is the same on both."""

    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        convolution = nn.Conv1d(4, 4, 1, groups=groups)
        layers = nn.Unflatten(1, (4, 1)), convolution, Doubled(4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, classes)
        return with_head(nn.Sequential(*layers), "5")

    monkeypatch.setitem(MODELS._items, "test_derived", network)
    lanes: set[int] = set()
    run_it = Recorded.run

    def noted(self: Recorded, examples: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        lanes.add(len(examples[0]))
        return run_it(self, examples, calls, *args)

    here = toy("fedavg", model="test_derived", dtype=dtype)
    run(here, 2)
    monkeypatch.setattr(Recorded, "run", noted)
    with SecondDevice():
        there = toy("fedavg", model="test_derived", dtype=dtype, device=NAME)
        there.advance()
        there.advance()
        assert_same(everything(there), everything(here), tolerance)
    assert (lanes == {1}) == (groups > 1)
    assert sum("one client after the other" in warning for warning in there.warnings) == (groups > 1)
