"""What makes a cell of convolutional clients faster leaves its bytes and its numbers alone."""

from typing import Any

import pytest
import torch

from bench.arena import channels_last
from bench.federation import Federation
from bench.models.conv import _Pooled
from bench.settings import Settings
from bench.step import differentiate, differentiate_alone
from tests.engine.problems import everything
from tests.speed.test_plain import SIZES, problem


def trained(method: str = "ditto", **options: Any) -> dict[str, torch.Tensor]:
    """All state after two rounds of a small convolutional cell."""
    chosen = {"model": "cnn", "model_options": {"hidden": 8}, "clients": len(SIZES), "batch_size": 4, "momentum": 0.5}
    settings = Settings(method=method, **{**chosen, **options.pop("settings", {})})
    federation = Federation(settings, *problem(False), **options)
    for _ in range(2):
        federation.advance()
        federation.evaluate()
    return everything(federation)


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_the_number_of_clients_at_a_time_changes_no_byte(model: str) -> None:
    """In float32, with batches of several sizes, personal and generic models, several times over."""
    settings = {"model": model}
    alone = trained(settings=settings, executor="sequential", threads=1)
    for threads in (2, 5, 2, 5):
        side_by_side = trained(settings=settings, executor="sequential", threads=threads)
        assert all(alone[n].numpy().tobytes() == side_by_side[n].numpy().tobytes() for n in alone)


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
    real = torch.nn.Conv2d.forward

    def watched(self: torch.nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        layouts.add(x.stride(1) == 1)
        return real(self, x)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", watched)
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
