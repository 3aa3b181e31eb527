"""FedAP: shares of equal clients, statistics by plain torch; its rounds are held against its authors'."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.method import Message
from bench.plugin import MODELS
from methods.fedap import mixing
from tests.engine.problems import toy
from tests.methods.images import SIZES as IMAGES
from tests.methods.images import images

SIZES = [9, 5, 7]
HP = {"lam": 0.3, "warmup": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_of_equal_statistics_share_what_is_not_their_own(dtype: torch.dtype) -> None:
    """The third client's statistics differ; without BatchNorm, and so without statistics, all are alike."""
    same, other = [torch.ones(2, 3, dtype=dtype)], [torch.zeros(2, 3, dtype=dtype)]
    like = torch.zeros(1, dtype=dtype)
    shares = mixing(like, [same, same, other], 0.5)
    torch.testing.assert_close(shares, shares.new_tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]))
    torch.testing.assert_close(mixing(like, [[], [], []], 0.5), 0.25 * (torch.ones(3, 3) + torch.eye(3)).to(dtype))
    assert mixing(like, [same], 0.5).tolist() == [[1.0]]


def messages_of(federation: Any) -> list[Message]:
    """The uploads of the next round."""
    found: list[Message] = []
    aggregate = federation.method.aggregate

    def listening(server: Any, arrived: list[Message]) -> Any:
        found.extend(arrived)
        return aggregate(server, arrived)

    federation.method.aggregate = listening
    federation.advance()
    federation.method.aggregate = aggregate
    return found


class _Two(nn.Module):
    """A convolution and a linear layer with BatchNorm behind each."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(1, 4, 5, stride=3), nn.BatchNorm2d(4)
        self.inner, self.second = nn.Linear(64, 5), nn.BatchNorm1d(5)
        self.head = nn.Linear(5, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.inner(torch.relu(self.first(self.conv(x))).flatten(1))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_two_norms")
def two_norms(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with running statistics of both kinds."""
    return _Two(classes)


def test_statistics_are_those_of_what_enters_the_layers_of_the_model_that_a_client_starts_from() -> None:
    """None travel before the end of the warm-up; then over all samples and places, in the mode of evaluation."""
    data = images()
    federation = toy("fedap", model="test_two_norms", data=data, sizes=IMAGES, hp={"warmup": 2})
    assert not any("statistics" in m.values for _ in range(2) for m in messages_of(federation))
    models = federation.evaluator.personal(federation.version)
    for m in messages_of(federation):
        net = _Two(3).double().eval()
        net.load_state_dict(models[m.client].tensors(), strict=False)
        x = torch.from_numpy(data.x[:8] if m.client == 0 else data.x[8:20]).double()
        z = net.conv(x)
        below = torch.relu(net.first(z)).flatten(1)
        for found, entered in zip(m["statistics"], (z.transpose(0, 1).flatten(1).T, net.inner(below)), strict=True):
            expected = torch.stack([entered.mean(0), entered.std(0, correction=0)])
            torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-12)
    assert not any("statistics" in m.values for m in messages_of(federation))


def test_deviations_keep_their_digits_far_from_zero_in_float32() -> None:
    """Inputs around 1000 with deviations of 1, whose squares have no digits left for them."""
    data = replace(images(), x=images().x + 1000)
    hp = {"warmup": 0}
    federation = toy("fedap", model="test_two_norms", data=data, sizes=IMAGES, hp=hp, dtype="float32", lr=1e-9)
    net = _Two(3)
    net.load_state_dict(federation.server.initial_model().tensors(), strict=False)
    net.double()
    for m in messages_of(federation):
        x = torch.from_numpy(data.x[:8] if m.client == 0 else data.x[8:20]).double()
        entered = net.conv(x).transpose(0, 1).flatten(1).T
        torch.testing.assert_close(
            m["statistics"][0][1].double(), entered.std(0, correction=0).detach(), rtol=0.01, atol=0
        )


def test_a_client_is_measured_once_when_it_first_takes_part_and_starts_from_the_mean_of_all() -> None:
    federation = toy("fedap", model="test_norm", sizes=SIZES, hp=HP, participation=0.34, selection="round_robin")
    for t in range(3):
        down = federation.clients.down(t)
        assert down["measure"]
        assert torch.equal(down["shared"].weights, federation.server.state["shared"].weights)
        federation.advance()
        assert not federation.clients.down(t)["measure"]
        assert len(federation.server.state["statistics"]) == t + 1
        assert bool(federation.method.relations(federation.server)) == (t == 2)
