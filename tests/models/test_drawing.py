"""Networks that draw in training: their masks belong to a client's step, whoever is computed beside it."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torchvision.ops import StochasticDepth

from bench.errors import UserError
from bench.federation.federation import Federation
from bench.models.factory import build
from bench.models.network import with_head
from bench.network_draws import NetworkDraws
from bench.params import Spec
from bench.settings import Settings
from tests.engine.problems import assert_same, everything, generic, run, toy_partition
from tests.models.helpers import pictures
from tests.models.plain_loop import check_draws

SIZES = [9, 6, 5, 0]
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of cohorts with torch's attention


def network(**layers: Callable[[], nn.Module]) -> Callable[[Callable[[Any, Tensor], Tensor]], type[nn.Module]]:
    """A decorator that makes a network of a function of the network and of `z`, rows of a picture `[batch, 8, 6]`.

    Args:
        layers: makers of layers that the function uses.
    """

    def of(function: Callable[[Any, Tensor], Tensor]) -> type[nn.Module]:
        class Network(nn.Module):
            def __init__(self, shape: tuple[int, ...], classes: int) -> None:
                super().__init__()
                self.rows, self.head = nn.Linear(shape[2], 6), nn.Linear(6, classes)
                for name, make in layers.items():
                    setattr(self, name, make())

            def features(self, x: Tensor) -> Tensor:
                return function(self, torch.tanh(self.rows(x.mean(1)))).mean(1)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.head(self.features(x))
                return out

        Network.__name__ = Network.__qualname__ = function.__name__
        return Network

    return of


@network(
    drop=lambda: nn.Sequential(nn.Dropout(0.3), nn.AlphaDropout(0.1), nn.Dropout1d(0.2), StochasticDepth(0.2, "row")),
    channels=lambda: nn.Sequential(nn.FeatureAlphaDropout(0.2), nn.Dropout(0.1, inplace=True)),
)
def layers(net: Any, z: Tensor) -> Any:
    """torch's layers, one after another."""
    return net.channels(net.channels(net.drop(z)))


@network()
def functions(net: Any, z: Tensor) -> Tensor:
    """What people write by hand: dropout in a function, drop path as timm has it, noise, a mask from probabilities."""
    z = functional.dropout(z, 0.3, training=net.training)
    if not net.training:
        return z
    path = z.new_empty(len(z), 1, 1).bernoulli_(0.8)
    path.div_(0.8)
    z = z * path + 0.1 * torch.rand_like(z) + torch.rand(6)
    return z * torch.bernoulli(torch.full_like(z, 0.7)) * z.new_empty(6).uniform_(0.5, 1.5)


@network()
def noisy(net: Any, z: Tensor) -> Any:
    """Gaussian noise in the ways that people write it."""
    if not net.training:
        return z
    noise = torch.randn_like(z) + torch.randn(8, 6) + torch.empty_like(z).normal_(0, 0.5)
    return torch.distributions.Normal(z + 0.1 * noise + torch.normal(0.0, 0.1, z.shape), 0.1).rsample()


@network()
def mixup(net: Any, z: Tensor) -> Tensor:
    """Samples mixed with others of their batch, so that no batch may be padded."""
    if not net.training:
        return z
    lines = z[:, torch.randint(0, 8, (4,))] * torch.randint(3, size=(4, 1))
    return 0.7 * lines + 0.3 * lines[torch.randperm(len(z))]


@network(encoder=lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True))
def encoder(net: Any, z: Tensor) -> Any:
    """torch's encoder, whose attention drops weights."""
    return net.encoder(z)


@network()
def time_first(net: Any, z: Tensor) -> Tensor:
    """A layout with samples in the second place, where a larger batch would move every draw."""
    return functional.dropout(z.transpose(0, 1).contiguous(), 0.3, net.training).transpose(0, 1)


@network(norm=lambda: nn.BatchNorm1d(8), drop=lambda: nn.Dropout(0.5))
def normed(net: Any, z: Tensor) -> Any:
    """BatchNorm beside dropout."""
    return net.drop(net.norm(z))


@network(
    lstm=lambda: nn.LSTM(6, 3, 2, dropout=0.4, batch_first=True, bidirectional=True),
    gru=lambda: nn.GRU(6, 6, 2, dropout=0.4, batch_first=True),
)
def recurrent(net: Any, z: Tensor) -> Any:
    """Two recurrent layers with dropout between them: `vmap` does not know the first."""
    return net.gru(net.lstm(z)[0])[0]


@network()
def comparing(net: Any, z: Tensor) -> Tensor:
    """Draws in place and reads the tensors that were drawn into, one of them twice, in a list and by another name."""
    if not net.training:
        return z
    mask, row = torch.empty_like(z), torch.empty(6)
    mask.uniform_()
    row.bernoulli_(0.5)
    row.bernoulli_(0.8)
    return torch.cat([torch.where(condition=mask < 0.9, input=z, other=mask), mask], 1)[:, 2:10] * row


@network()
def one_by_one(net: Any, z: Tensor) -> Tensor:
    """One draw for each sample, so that a larger batch has more of them."""
    return torch.stack([functional.dropout(sample, 0.3, net.training) for sample in z])


QUICK, LONG = [layers, mixup, comparing], [functions, noisy, encoder, time_first, normed, recurrent, one_by_one]
NETWORKS = [*QUICK, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)]


def federation(executor: Any, method: str = "fedavg", **changes: Any) -> Federation:
    data = pictures(8)
    chosen: dict[str, Any] = {"dtype": "float64", "batch_size": 4, "lr": 0.05, "seed": 3, "epochs": 2, **changes}
    return Federation(
        Settings(method=method, model="theirs", clients=len(SIZES), **chosen),
        dataset=data, partition=toy_partition(data, SIZES), executor=executor, public=None,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", pytest.param("ditto", marks=pytest.mark.long)])
@pytest.mark.parametrize("theirs", NETWORKS, indirect=True)
def test_the_same_draws_in_a_cohort_alone_after_a_resume_and_in_a_plain_loop(method: str) -> None:
    check_draws(lambda executor: federation(executor, method), pictures(8), SIZES)
    debug, alone = federation("debug", method), federation("sequential", method)
    run(debug, 1), run(alone, 1)
    assert_same(everything(debug), everything(alone), 0)


def splitmix64(key: int, n: int, place: int) -> int:
    """The n-th draw of a step at a place, by the definition of Steele, Lea and Flood, in Python's numbers."""

    def mixed(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    gamma = 0x9E3779B97F4A7C15
    return mixed((mixed((key + n * gamma) % 2**64) + (place + 1) * gamma) % 2**64)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_draws_are_splitmix64(key: int, draws: int) -> None:
    """Its published first numbers of seed 1234567, too."""
    stream = NetworkDraws(torch.tensor(key))
    for n in range(1, draws + 1):
        bits = stream.bits(torch.empty(2, 3)).reshape(-1).tolist()
        assert bits == [splitmix64(key, n, place) >> 40 for place in range(6)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_few_digits_never_round_up_to_one(dtype: torch.dtype) -> None:
    u = NetworkDraws(torch.tensor(0)).uniform(torch.empty(100_000, dtype=dtype))
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() < 1


def test_a_tensor_that_is_drawn_into_again_has_the_last_draw() -> None:
    row = torch.empty(50)
    with NetworkDraws(torch.tensor(0)):
        first, last, read = row.uniform_() + 0, row.normal_() + 0, row + 0
    assert torch.equal(read, last)
    assert not torch.equal(read, first)


def test_flags_and_a_limit_by_name() -> None:
    with NetworkDraws(torch.tensor(0)):
        flags, numbers = torch.empty(40, dtype=torch.bool).bernoulli_(0.5), torch.randint_like(torch.zeros(40), high=2)
    assert set(flags.tolist()) == {False, True}
    assert set(numbers.tolist()) == {0, 1}


def test_complex_numbers_are_refused() -> None:
    with NetworkDraws(torch.tensor(0)), pytest.raises(UserError, match="draw real and imaginary parts"):
        torch.randn(3, dtype=torch.complex64)


def test_draws_are_uniform_and_independent() -> None:
    """Of neighbouring keys, draws and places: means, variances and correlations of a million numbers."""
    streams = [NetworkDraws(torch.tensor(key)) for key in (0, 1, -1)]
    u = torch.stack([stream.uniform(torch.empty(200_000)) for stream in streams for _ in range(3)])
    assert ((u.mean(1) - 0.5).abs() < 5 * math.sqrt(1 / 12 / 200_000)).all()
    assert (u.var(1) * 12 - 1).abs().max() < 0.02
    with_neighbours = torch.corrcoef(torch.cat([u[:, 1:], u[:1, :-1]])) - torch.eye(10)
    assert with_neighbours.abs().max() < 5 / math.sqrt(200_000)
    counts = torch.histc(u, 64, 0, 1)
    assert ((counts - u.numel() / 64) ** 2 / (u.numel() / 64)).sum() < 63 + 5 * math.sqrt(2 * 63)


OWN = [nn.Dropout(0.1), nn.LSTM(2, 2, 2, dropout=0.1), nn.MultiheadAttention(2, 1, dropout=0.1)]


@pytest.mark.parametrize("layer", OWN)
def test_a_network_of_a_method_s_own_has_a_stream(layer: nn.Module) -> None:
    """As `server.build` makes it, which no trial watches."""
    for dropped in (True, False):
        if not dropped:
            setattr(layer, "p" if isinstance(layer, nn.Dropout) else "dropout", 0.0)
        assert Spec.of("mine", nn.Sequential(layer, nn.Linear(2, 2))).draws == dropped


@network(drop=lambda: nn.Dropout(0.4))
def dropping(net: Any, z: Tensor) -> Any:
    """One layer of dropout."""
    return net.drop(z)


def test_dropout_drops_where_a_draw_is_below_its_probability() -> None:
    """By Python's numbers; a plain loop with such masks is compared with training above."""
    with NetworkDraws(torch.tensor(7)):
        dropped = functional.dropout(torch.ones(4, 5, dtype=torch.float64), 0.4)
    kept = [splitmix64(7, 1, place) >> 40 >= round(0.4 * 2**24) for place in range(20)]
    assert torch.equal(dropped, torch.tensor(kept).view(4, 5) / torch.tensor(0.6, dtype=torch.float64))


@pytest.mark.parametrize("theirs", [layers, encoder], indirect=True)
def test_evaluation_draws_nothing() -> None:
    cell = federation("cohort")
    first, again = run(cell, 1), cell.evaluate()
    assert (first.metrics, first.clients) == (again.metrics, again.clients)


@pytest.mark.parametrize("theirs", [dropping], indirect=True)
def test_a_sample_alone_has_the_draws_that_it_has_in_its_batch() -> None:
    """With DP-SGD, whose gradients are of samples alone: without clipping and noise they are those of the batch."""
    private = federation("cohort", dp_sgd={"norm": 1e9, "noise": 1e-12, "delta": 1e-5}, epochs=1)
    run(private, 1)
    assert private.warnings == []


@pytest.mark.parametrize("theirs", [dropping], indirect=True)
def test_lora_drops_inputs_of_its_matrices_only() -> None:
    """The same in a cohort, alone and after a resume (to the byte); evaluation drops nothing."""
    cohort, alone, before, resumed, without = (
        federation(e, adapters={"name": "lora", "rank": 2, "alpha": 2, "train": [], "dropout": p})
        for e, p in (("cohort", 0.3), ("sequential", 0.3), ("cohort", 0.3), ("cohort", 0.3), ("cohort", 0.0))
    )
    scores = run(cohort, 2)
    run(alone, 2), run(before, 1), run(without, 2)
    resumed.restore(*before.state()), run(resumed, 1)
    assert_same(everything(resumed), everything(cohort), 0)
    assert_same(everything(alone), everything(cohort))
    assert not torch.equal(generic(cohort), generic(without))
    assert cohort.evaluate().metrics == scores.metrics


def dropping_head(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network whose last layer drops its inputs."""
    last = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, classes))
    return with_head(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 5), last), "2")


@pytest.mark.parametrize(("theirs", "on_features"), [(dropping_head, True), (dropping, False)], indirect=["theirs"])
def test_a_frozen_body_leaves_the_head_its_draws(on_features: bool) -> None:
    """Features take the samples' place only where nothing draws between them and the head."""
    frozen = ("body",) if on_features else ("rows",)
    cohort, alone = (federation(executor, frozen=frozen) for executor in ("cohort", "sequential"))
    assert cohort.on_features == on_features
    run(cohort, 2), run(alone, 2)
    assert_same(everything(alone), everything(cohort))
    recipe = next(iter(cohort.engine._preparer._recipes))
    assert recipe.network_draws


@network()
def part(net: Any, z: Tensor) -> Tensor:
    """Draws into a part of a tensor in place."""
    mask = torch.zeros_like(z)
    if net.training:
        mask[:, 0].uniform_()
    return z * mask


@network()
def part_after(net: Any, z: Tensor) -> Tensor:
    """Reads a part, taken before the draw, of a tensor that was drawn into in place."""
    mask = torch.ones_like(z)
    part = mask[:, 0]
    if net.training:
        mask.uniform_()
    return z * part.unsqueeze(1)


@network()
def exponential(net: Any, z: Tensor) -> Tensor:
    """Draws that have no stream."""
    return functional.gumbel_softmax(z) if net.training else z.softmax(-1)


@network()
def recomputed(net: Any, z: Tensor) -> Any:
    """Gradient checkpointing, which computes a second time outside the call."""
    return checkpoint(functional.dropout, z, 0.2, net.training, use_reentrant=False)


@network()
def written_into(net: Any, z: Tensor) -> Tensor:
    """A draw into a tensor that the network gives."""
    mask = torch.ones(6)
    if net.training:
        torch.rand(6, out=mask)
    return z * mask


@network()
def coin(net: Any, z: Tensor) -> Tensor:
    """Python's generator, which is one for the process."""
    return z if net.training and random.random() < 0.5 else z + 0


@network()
def always(net: Any, z: Tensor) -> Tensor:
    """Dropout that evaluation has, too."""
    return functional.dropout(z, 0.2)


@network(gru=lambda: nn.GRU(6, 6, 2, dropout=0.4, batch_first=True))
def packed(net: Any, z: Tensor) -> Tensor:
    """Recurrent layers of a packed sequence."""
    sequence = nn.utils.rnn.pack_padded_sequence(z, torch.full((len(z),), 8), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(net.gru(sequence)[0], batch_first=True)[0]


REFUSED = [
    (part, "draws into a part of a tensor in place"),
    (part_after, "reads a part of a tensor that it drew into in place"),
    (exponential, "draws random numbers by exponential_ in training, .* torch.rand"),
    (recomputed, "a second time .torch.utils.checkpoint.* switch gradient checkpointing off"),
    (written_into, "calls rand with `out`"),
    (coin, "draws random numbers by numpy or Python in training"),
    (always, r"by bernoulli_ in evaluation, .* `F.dropout\(x, p, training=self.training\)`"),
    (packed, "of a packed sequence: give it a padded one"),
]


@pytest.mark.parametrize(("theirs", "words"), REFUSED, indirect=["theirs"])
def test_draws_that_have_no_stream_are_refused_by_name(words: str) -> None:
    with pytest.raises(UserError, match=words):
        build("theirs", (1, 8, 8), 3)


@network()
def reentrant(net: Any, z: Tensor) -> Any:
    """The older gradient checkpointing, which only a backward pass shows."""
    return checkpoint(functional.dropout, z, 0.2, net.training, use_reentrant=True)


@pytest.mark.parametrize("theirs", [reentrant], indirect=True)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="switch gradient checkpointing off"):
        run(federation("sequential"), 1)
