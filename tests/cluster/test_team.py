"""One cell on several engines, here in one process; their messages are packed as they are between processes."""

import functools
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from bench.conformance.toy_problem import ROUNDS, advance, difference, toy_federation
from bench.engine.anomalies import Diverged
from bench.engine.engine import Engine
from bench.engine.team import Assignment, HelperAnswer, SharedState, serve
from bench.federation.federation import Federation
from bench.settings import Settings
from tests.later import Later

if find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

KINDS = ("fedavg", "scd", "fedfomo", "comet", "fedbuff")
wire = Later("bench.cluster.wire")  # imports Ray


class Beside:
    """Helpers (`bench.engine.team.Helpers`) in this process; `sent` lists how many bytes each assignment took."""

    def __init__(self, engines: list[Engine]) -> None:
        self._engines = engines
        homes = [engine.device_data.home for engine in engines]
        self._wires = [(wire.Wire(home, near=True), wire.Wire(home, near=False)) for home in homes]
        self.sent: list[int] = []

    def __len__(self) -> int:
        return len(self._engines)

    def begin(self, assignments: Sequence[Assignment | None], state: SharedState) -> list[Callable[[], HelperAnswer]]:
        """Do each assignment on its engine."""
        found = []
        for engine, (near, far), assignment in zip(self._engines, self._wires, assignments, strict=True):
            if assignment:
                packed = near.pack((assignment, state))
                self.sent.append(sum(one.content.nbytes for one in packed.tensors.values()))
                answer = far.pack(serve(engine, *far.unpack(packed)))
                found.append(functools.partial(near.unpack, answer))
        return found


def shared(method: str, devices: int, **changes: Any) -> tuple[Federation, Beside]:
    """A federation whose clients are shared by several engines."""
    federation = toy_federation(method, **changes)
    beside = Beside([toy_federation(method, **changes).engine for _ in range(1, devices)])
    if devices > 1:
        federation.engine.share_with(beside)
    return federation, beside


@pytest.mark.parametrize(
    ("method", "changes"), [*((method, {}) for method in KINDS), ("fedavg", {"frozen": ("body",)})]
)
def test_engines_that_share_clients_give_the_bytes_of_one(method: str, changes: dict[str, Any]) -> None:
    """Two and three, also from checkpoints written with another number of engines."""
    expected = advance(toy_federation(method, executor="cohort", **changes), ROUNDS)
    assert not difference(expected, advance(shared(method, 3, executor="cohort", **changes)[0], ROUNDS))
    state: Any = None
    for devices in (2, 1, 3):
        federation, _ = shared(method, devices, executor="cohort", **changes)
        if state:
            federation.restore(state[0], json.loads(json.dumps(state[1])))
        found = advance(federation, 1)
        state = federation.state()
    assert not difference(expected, found)


def test_clients_stay_with_the_engine_that_has_their_state() -> None:
    """A round and its evaluation send only the broadcast, although clients continue from their own models."""
    federation, beside = shared("ditto", 2, participation=1.0)
    for _ in range(ROUNDS):
        beside.sent.clear()
        federation.advance()
        federation.evaluate()
        assert 0 < sum(beside.sent) <= 2 * federation.server.state["model"].weights.nbytes  # the old and the new model


def test_the_first_client_that_diverges_is_named_whoever_trains_it() -> None:
    said = []
    for devices in (1, 2, 3):
        with pytest.raises(Diverged) as found:
            advance(shared("fedavg", devices, lr=1e200)[0], ROUNDS)
        said.append((str(found.value), found.value.round, found.value.owner))
    assert len(set(said)) == 1


def test_a_tensor_that_is_changed_in_place_travels_again() -> None:
    near, far = (wire.Wire(torch.device("cpu"), near=end) for end in (True, False))
    tensor = torch.zeros(3)
    for value, travels in ((0.0, True), (0.0, False), (1.0, True), (1.0, False)):
        if value != tensor[0]:
            tensor.fill_(value)
        packed = near.pack([tensor])
        assert bool(packed.tensors) == travels
        assert far.unpack(packed)[0].tolist() == [value] * 3
    del tensor
    far.unpack(near.pack([]))
    assert not far._held


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    near, far = (wire.Wire(torch.device("cpu"), near=end) for end in (True, False))
    tensor = torch.arange(6)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    found = far.unpack(near.pack(tensor))
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    assert found.equal(tensor)


def test_a_change_of_the_data_reaches_all_devices() -> None:
    """Clients train and are scored on the data of the round wherever that happens."""
    timeline = [{"round": 1, "shifts": [{"name": "concept_shift", "clusters": 2}]}, {"round": 2, "leave": [0, 0]}]
    settings = Settings(method="er", partition="iid", clients=5, rounds=4, model="logistic", lr=0.1, timeline=timeline)
    alone, near, far = (Federation.of(settings) for _ in range(3))
    beside = Beside([far.engine])
    near.engine.share_with(beside)
    for _ in range(4):
        alone.advance()
        near.advance()
        one, other = alone.evaluate(), near.evaluate()
        assert (one.metrics, one.changes) == (other.metrics, other.changes)
    assert torch.equal(alone.server.state["model"].weights, near.server.state["model"].weights)
    assert beside.sent
    assert far.engine.device_data.stage == 2
