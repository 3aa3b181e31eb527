"""The plain loop that `bench speed` compares with computes what the engine computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.federation.federation import Federation
from bench.settings import Settings
from bench.speed import plain as speed_plain
from bench.speed.plain import PlainLoop
from tests.engine import problems  # noqa: F401 (its models)
from tests.speed.problems import SIZES, problem


def plain_and_ours(repeat: bool, **settings: Any) -> tuple[PlainLoop, Federation]:
    chosen = Settings(method="fedavg", clients=len(SIZES), dtype="float64", epochs=2, lr=0.05, **settings)
    data, partition = problem(repeat)
    return PlainLoop(chosen, data, partition, torch.device("cpu")), Federation(
        chosen, dataset=data, partition=partition, public=None
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp", "momentum": 0.0},
        {"model": "cnn", "weight_decay": 0.01},
        {"model": "cnn", "weight_decay": 0.01, "frozen": ("body",)},
    ],
)
@pytest.mark.parametrize(("repeat", "batch_size"), [(False, 13), (True, 4)])
def test_a_round_of_the_plain_loop_is_a_round_of_the_engine(
    settings: dict[str, Any], repeat: bool, batch_size: int
) -> None:
    """Whole clients as batches, and short batches where their order makes no difference."""
    plain, ours = plain_and_ours(repeat, batch_size=batch_size, **settings)
    trained = [p for p in plain.net.parameters() if p.requires_grad]
    before = torch.cat([p.flatten() for p in trained])
    steps = plain.round(range(len(SIZES)))
    ours.advance()
    assert steps == ours.engine.steps == 2 * sum(-(-n // batch_size) for n in SIZES)
    weights = torch.cat([p.flatten() for p in trained])
    torch.testing.assert_close(weights, ours.server.state["model"].weights, rtol=1e-9, atol=1e-9)
    assert not torch.equal(weights, before)


def test_its_scores_are_those_of_the_engine() -> None:
    plain, ours = plain_and_ours(False, model="mlp")
    plain.round(range(len(SIZES)))
    (accuracy, loss), (train_accuracy, _) = plain.evaluate(range(len(SIZES)))
    weights = torch.cat([p.flatten() for p in plain.net.parameters()]).detach()
    ours.server.state["model"] = ours.server.state["model"].with_weights(weights)
    rows = {(r["on"], r["split"], r["quantity"]): r["value"] for r in ours.evaluate().metrics if r["metric"] == "gm"}
    assert accuracy == pytest.approx(rows["global", "test", "accuracy"])
    assert loss == pytest.approx(rows["global", "test", "loss"])
    assert 0 < train_accuracy <= 1


def test_every_client_starts_from_the_generic_model() -> None:
    """Whatever its module held before."""
    plain, _ = plain_and_ours(False, model="mlp", batch_size=13)
    with torch.no_grad():
        for p in plain.clients[1].net.parameters():
            p.fill_(torch.nan)
    plain.round([1])
    assert all(p.isfinite().all() for p in plain.net.parameters())


def test_running_statistics_are_averaged_too() -> None:
    plain, ours = plain_and_ours(False, model="test_norm", batch_size=13)
    ours.selector._ids, ours.selector.count = [0, 1, 4], 3  # those with more samples than one
    plain.round([0, 1, 4])
    ours.advance()
    buffers = torch.cat([b.flatten() for b in plain.net.buffers()])
    torch.testing.assert_close(buffers, ours.server.state["model"].buffers)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_captured_steps_are_the_steps(momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What capturing takes of steps leaves nothing, and a graph reads the buffers that it was captured with."""
    captures = []

    def captured(work: Callable[[], None]) -> Callable[[], None]:
        captures.append(work)
        for _ in range(4):
            work()
        return work

    monkeypatch.setattr(speed_plain, "cuda_graph", captured)
    settings = Settings(
        method="fedavg", clients=len(SIZES), dtype="float64", model="cnn", batch_size=4, momentum=momentum
    )
    data, partition = problem(False)
    weights = []
    for how in (False, True):
        loop = PlainLoop(settings, data, partition, torch.device("cpu"), captured=how)
        for _ in range(2):
            loop.round(range(len(SIZES)))
        weights.append(torch.cat([p.flatten() for p in loop.net.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-12, atol=1e-12)
    assert len(captures) == sum(n >= 4 for n in SIZES)
