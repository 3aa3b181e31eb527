"""What makes a cell of convolutional clients faster leaves its bytes and its numbers alone."""

from typing import Any

import pytest
import torch

from bench.engine import predict as outputs
from bench.engine.backends import backends
from bench.engine.device_data import channels_last
from bench.engine.step import differentiate, differentiate_alone
from bench.models.conv import _Pooled
from bench.models.fourier import FourierConv2d
from tests.speed.problems import two_rounds


def trained(**options: Any) -> dict[str, torch.Tensor]:
    """The second half of it."""
    return two_rounds(**options)[1]


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_the_number_of_clients_at_a_time_changes_no_byte(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, with batches of several sizes, personal and generic models, several times over."""
    monkeypatch.setattr(outputs, "_THREADS_PAY", 0)
    settings = {"model": model}
    alone = trained(settings=settings, executor="sequential", threads=1)
    for threads in (2, 5, 2, 5):
        side_by_side = trained(settings=settings, executor="sequential", threads=threads)
        assert all(alone[n].numpy().tobytes() == side_by_side[n].numpy().tobytes() for n in alone)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "momentum"),
    [
        ("fedavg", 0.0),
        ("ditto", 0.0),
        ("fedrod", 0.5),
        *(pytest.param("scd", m, marks=pytest.mark.slow) for m in (0.0, 0.5)),
    ],
)
def test_recording_a_client_s_steps_changes_no_byte(
    method: str, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where short batches come between, some recorded later and some not; without momentum, weights change in
    place."""
    found = []
    for after in (10**9, 6):
        monkeypatch.setattr(backends, "_RECORD_AFTER", after)
        settings = {"epochs": 3, "momentum": momentum, "model_options": {"hidden": 300}}
        federation, values = two_rounds(method=method, settings=settings, threads=2)
        found.append(values)
        steps = list(federation.engine._trainer.steps.by_recipe.values())
        recorded = [made.run for step in steps for made in step._recorded.values()]
        assert all(isinstance(one, torch.jit.ScriptModule) for one in recorded)
        assert bool(recorded) == (after == 6)
        changed = any("aten::addcmul_(" in str(one.inlined_graph) for one in recorded)
        assert changed == (after == 6 and momentum == 0 and method != "scd")  # whose loss reads weights as one vector
        assert len(recorded) < sum(len(step._unrecorded_calls) for step in steps)
    assert all(found[0][n].numpy().tobytes() == found[1][n].numpy().tobytes() for n in found[0])


def test_the_executors_agree_on_convolutions() -> None:
    """Channels-last and plain autograd in one, grouped convolutions under `vmap` in the other."""
    float64 = {"dtype": "float64"}
    found = [trained(settings=float64, executor=executor) for executor in ("sequential", "cohort")]
    assert any(t.dim() and t.abs().sum() > 0 for t in found[0].values())
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-9, atol=1e-9)


def test_one_channel_is_put_last_too() -> None:
    x = torch.arange(2 * 3 * 4.0).view(2, 1, 3, 4)
    moved = channels_last(x)
    assert torch.equal(moved, x)
    assert moved.stride() == (12, 1, 4, 1)
    assert torch.nn.functional.conv2d(moved, torch.ones(5, 1, 2, 2)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("says", [False, True])
def test_only_networks_that_say_so_get_channels_last(says: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training and evaluation; other networks may flatten with `view`."""
    layouts = set()
    real = FourierConv2d.forward

    def watched(self: FourierConv2d, x: torch.Tensor) -> torch.Tensor:
        layouts.add(x.stride(1) == 1)
        return real(self, x)

    monkeypatch.setattr(FourierConv2d, "forward", watched)
    monkeypatch.setattr(_Pooled, "channels_last", says)
    trained(executor="sequential")
    assert layouts == {says}


@pytest.mark.parametrize("unused", [False, True])
def test_gradients_alone_are_those_under_vmap(unused: bool) -> None:
    """Also where a part is not in the loss, or no part is."""
    parts = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}

    def objective(p: dict[str, torch.Tensor]) -> Any:
        loss = torch.tensor(2.0) if unused else (p["a"] ** 3).sum()
        return loss, (loss, {"moved": 2 * p["a"]})

    one, (loss, buffers) = differentiate_alone(objective, parts)
    two, (same, others) = differentiate(objective, parts)
    assert torch.equal(loss, same)
    assert torch.equal(buffers["moved"], others["moved"])
    assert not any(t.requires_grad for t in (loss, buffers["moved"], *one.values()))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert not parts["a"].requires_grad
