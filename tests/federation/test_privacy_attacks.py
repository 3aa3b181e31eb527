"""Every epsilon that a cell says, attacked from below: an explicit pair of neighbours must not show more.

Two kinds of tests belong together: rounds as they are run have the law that the attack assumes, and the attack on that
law shows less than what the cell says.

An attack has two neighbours, the privacy loss of what is released of the first, and the epsilon that this loss shows at
least. The loss L of a release is the logarithm of its density beside one neighbour over that beside the other. Every
true epsilon has delta >= E max(0, 1 - exp(epsilon - L)) for releases of the first neighbour. Each draw of L is made a
coin of that probability, so that Clopper-Pearson's lower limit is exact.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.config.validation import check_setting
from bench.data import Array
from bench.federation.federation import Federation
from bench.federation.privacy import epsilon
from bench.method import METHODS, Client, Method, Program, Server, State, Train, Upload
from tests.engine.problems import generic, toy

DRAWS = 200_000
Losses = Callable[[np.random.Generator, int], Array]
"""Privacy losses `[draws]` of one release of the first neighbour."""


def delta_at_least(losses: Array, epsilon: float, rng: np.random.Generator, confidence: float = 0.999) -> float:
    """The delta that these losses show for an epsilon, at least."""
    hits = int((rng.random(len(losses)) < -np.expm1(np.minimum(epsilon - losses, 0))).sum())
    return float(stats.beta.ppf(1 - confidence, hits, len(losses) - hits + 1)) if hits else 0.0


def epsilon_at_least(losses: Array, delta: float, confidence: float = 0.999) -> float:
    """The largest epsilon, to a thousandth, for which the losses show more than delta; 0 if there is none."""
    low, high = 0.0, float(losses.max())
    while high - low > 1e-3:
        middle = (low + high) / 2
        shown = delta_at_least(losses, middle, np.random.default_rng(1), confidence)  # the same coins: it is monotone
        low, high = (middle, high) if shown > delta else (low, middle)
    return low


def composed(release: Losses, rounds: int, draws: int, seed: int = 0) -> Array:
    """Losses `[draws]` of all rounds together."""
    rng = np.random.default_rng(seed)
    return sum((release(rng, draws) for _ in range(rounds)), np.zeros(draws))


def one_more(noise: float, rate: float) -> Losses:
    """Of a client that sends its whole norm by its own coin, where all others send nothing, and the same client
    sending nothing."""

    def losses(rng: np.random.Generator, draws: int) -> Array:
        x = (rng.random(draws) < rate) + noise * rng.standard_normal(draws)
        return np.log1p(rate * np.expm1((x - 0.5) / noise**2))

    return losses


def one_less(noise: float, rate: float) -> Losses:
    """The same pair, of the client that sends nothing."""

    def losses(rng: np.random.Generator, draws: int) -> Array:
        x = noise * rng.standard_normal(draws)
        return -np.log1p(rate * np.expm1((x - 0.5) / noise**2))

    return losses


def in_its_place(noise: float, rate: float) -> Losses:
    """Of a client that sends its whole norm, and one in its place that sends the opposite, where a round has a fixed
    number of clients and all others send the opposite, too: who takes part leaves its place to none of those."""
    return one_more(noise / 2, rate)


def with_a_bit(noise: float, bit_noise: float, rate: float) -> Losses:
    """Of a client that sends its whole norm and, beside it, that its update was short, and the same client sending
    nothing.

    Args:
        noise: on the update, in units of the norm.
        bit_noise: on the number of short updates, of which a client is a half more or less.
        rate: the probability with which it sends something.
    """

    def losses(rng: np.random.Generator, draws: int) -> Array:
        there = rng.random(draws) < rate
        x, bit = there + noise * rng.standard_normal(draws), 0.5 * there + bit_noise * rng.standard_normal(draws)
        return np.log1p(rate * np.expm1((x - 0.5) / noise**2 + (0.5 * bit - 0.125) / bit_noise**2))

    return losses


@METHODS.register("test_far")
class Far(Method):
    """Client 0 sends much more than the norm in the first direction, and the others what the pair of an attack needs:
    nothing new, or as much in the opposite direction."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        far = torch.zeros_like(down["model"].weights)
        far[0] = 100.0 if client.id == 0 else client.state["others"]
        yield Upload({"model": down["model"].with_weights(down["model"].weights + far)})

    def init_client(self, server: Server, client: Client) -> None:
        client.state["others"] = -100.0 if client.n_train == 2 else 0.0


def far(size: int, clip: str = "clip", on: str = "sum", noise: float = 1.0, **options: Any) -> Federation:
    """A federation of five such clients, with norm 0.5."""
    channel = check_setting("channel", [{"name": clip, "norm": 0.5}, {"name": "gaussian", "noise": noise, "on": on}])
    return toy("test_far", sizes=[size] * 5, channel=tuple(channel), **options)


def releases(federation: Federation, rounds: int) -> Any:
    """The noisy sums of rounds in the first direction `[rounds]`, and in all others, in units of the norm."""
    moves = []
    for _ in range(rounds):
        before = generic(federation)
        federation.advance()
        moves.append((generic(federation) - before) * federation.selector.count / 0.5)
    return torch.stack(moves)[:, 0].numpy(), torch.stack(moves)[:, 1:].flatten().numpy()


def law(x: Any, rate: float, noise: float, shift: float = 1.0, base: float = 0.0) -> float:
    """The p-value of numbers that should be `base`, moved by `shift` with a probability, and have noise."""

    def below(value: Any) -> Any:
        moved = stats.norm.cdf(value, base + shift, noise)
        return rate * moved + (1 - rate) * stats.norm.cdf(value, base, noise)

    return float(stats.kstest(x, below).pvalue)


@pytest.mark.long
@pytest.mark.parametrize(
    ("selection", "participation", "size", "shift", "base"),
    [
        ("poisson", 0.4, 3, 1.0, 0.0),
        ("poisson", 0.2, 3, 1.0, 0.0),  # a third of the rounds have no client
        ("uniform", 0.4, 2, 2.0, -2.0),  # client 0 in the place of one that sends the opposite
        ("uniform", 1.0, 3, 1.0, 0.0),
    ],
)
def test_rounds_have_the_law_that_is_attacked(
    selection: str, participation: float, size: int, shift: float, base: float
) -> None:
    """The noise is on all numbers in every round, whoever is there, and the sum's divisor is the expected number."""
    federation = far(size, participation=participation, selection=selection, noise=0.7)
    first, others = releases(federation, 1500)
    assert law(first, participation, 0.7, shift, base) > 1e-3
    assert law(others, 0.0, 0.7) > 1e-3
    assert law(others, 0.0, 0.7 * 0.9) < 1e-6, "the test can tell a tenth of the noise"
    assert law(first, participation, 0.7, shift / 2, base) < 1e-6, "and half a shift"


def test_a_round_without_clients_is_a_round() -> None:
    """It moves the model by noise alone, is counted, and moves the clipping norm."""
    federation = far(3, participation=0.2, clip="adaptive_clip")
    assert federation.channel is not None
    sizes, norms = [], []
    for version in range(12):
        before = generic(federation)
        federation.advance()
        sizes.append(len(federation.server.selected))
        norms.append(federation.channel._shared["adaptive_clip model"]["norm"])
        assert (generic(federation) != before).all()
        ((_, rate, count),) = federation.channel.releases.mechanisms()  # type: ignore[union-attr]
        assert (rate, count) == (0.2, version + 1)
    assert min(sizes) == 0
    assert max(sizes) > 1
    assert len(set(norms)) == len(norms)


def said(rounds: int, **options: Any) -> tuple[float, dict[str, Any]]:
    """The epsilon that a cell says after so many rounds, and its whole statement; rounds are counted, not run."""
    federation = far(1, **options)
    channel = federation.channel
    assert channel is not None
    assert channel.releases is not None
    for version in range(rounds):
        channel.begin(version, federation.selector.count)
        if channel.sums:
            channel.releases.add_sum()
        else:
            channel.releases.add(0)
        channel.close(federation.selector.rate)
    (statement,) = federation.privacy()
    return float(statement["epsilon"]), statement


UNITS: list[Any] = [
    pytest.param({"participation": 0.4, "noise": 4.0}, 30, [one_more(4, 0.4), one_less(4, 0.4)], 2.5719, id="poisson"),
    pytest.param({"participation": 0.4, "noise": 4.0, "selection": "uniform"}, 30, [in_its_place(4, 0.4)], 12.4122,
                 id="fixed number"),
    pytest.param({"noise": 4.0}, 15, [one_more(4, 1.0)], 4.5565, id="all"),
    pytest.param({"noise": 4.0, "on": "each"}, 15, [one_more(2, 1.0)], 10.3130, id="each"),
    pytest.param({"noise": 4.0, "clip": "adaptive_clip"}, 15, [with_a_bit(4, 0.05 * 5, 1.0)], 0.0, id="adaptive"),
    pytest.param({"noise": 4.0, "clip": "adaptive_clip", "participation": 0.4}, 15, [with_a_bit(4, 0.05 * 2, 0.4)], 0.0,
                 id="adaptive poisson"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "rounds", "pairs", "value"), UNITS)
def test_no_pair_of_clients_shows_more_than_the_cell_says(
    options: dict[str, Any], rounds: int, pairs: list[Losses], value: float
) -> None:
    """For the delta of the cell; and the claim is no more than twice what is shown, but for a fixed number."""
    worth, statement = said(rounds, **options)
    if value:
        assert worth == pytest.approx(value, abs=2e-4)
    shown = max(epsilon_at_least(composed(pair, rounds, DRAWS), statement["delta"]) for pair in pairs)
    assert shown <= worth
    assert worth < shown * (3 if "fixed" in statement["sampling"] else 1.6)


@pytest.mark.parametrize(("rate", "noise", "rounds", "claimed"), [(0.1, 1.0, 30, 4.8481), (0.4, 4.0, 30, 2.5720)])
def test_the_attack_finds_what_poissons_count_leaves_out_of_a_fixed_number(
    rate: float, noise: float, rounds: int, claimed: float
) -> None:
    """What cells said before; the pair shows a delta of more than a hundredth for it."""
    assert epsilon([(noise, rate, rounds)], 1e-5) == pytest.approx(claimed, abs=1e-4)
    losses = composed(in_its_place(noise, rate), rounds, DRAWS)
    assert delta_at_least(losses, claimed, np.random.default_rng(0)) > 0.01
    assert epsilon_at_least(losses, 1e-5) < epsilon([(noise / 2, rate, rounds)], 1e-5, fixed=True)


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(
    rate=st.floats(0.02, 1.0), noise=st.floats(0.6, 8.0), rounds=st.integers(1, 40), fixed=st.booleans(),
    delta=st.sampled_from([1e-5, 1e-3, 0.1]),
)  # fmt: skip
def test_epsilon_is_an_upper_bound(rate: float, noise: float, rounds: int, fixed: bool, delta: float) -> None:
    worth = epsilon([(noise / 2 if fixed else noise, rate, rounds)], delta, fixed=fixed)
    for pair in (in_its_place,) if fixed else (one_more, one_less):
        assert delta_at_least(composed(pair(noise, rate), rounds, 20_000), worth, np.random.default_rng(2)) <= delta
    assert not fixed or worth <= epsilon([(noise / 2, 1.0, rounds)], delta, fixed=True)
    assert worth >= epsilon([(noise, rate, rounds)], delta) or not fixed


def one_sample(model: Any, values: Any, batch: Any, ctx: Any) -> Any:
    """A loss whose gradient is 100 in the first direction for samples of class 1, and 0 for others."""
    return 100.0 * values["w"].weights[0] * batch.mean((batch.y == 1).to(values["w"].weights.dtype))


@METHODS.register("test_one_sample")
class OneSample(Method):
    """A step of a client one of whose samples alone has a gradient."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=one_sample, steps=1)
        yield Upload({"model": trained["w"]})


@pytest.mark.long
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_noisy_steps_have_the_law_that_is_attacked(executor: str) -> None:
    """Also where batches are wider than others, or empty: 12 samples, 2 of them in a batch on average."""
    federation = toy("test_one_sample", sizes=[12], batch_size=2, momentum=0.0, lr=1.0, executor=executor,
                     dp_sgd={"norm": 0.5, "noise": 0.7})  # fmt: skip
    data = federation.device_data
    data.local.y[:12] = torch.tensor([1] + [0] * 11)
    moves = []
    for _ in range(500):
        before = generic(federation)
        federation.advance()
        moves.append((before - generic(federation)) * 2 / 0.5)
    first, others = torch.stack(moves)[:, 0].numpy(), torch.stack(moves)[:, 1:].flatten().numpy()
    assert law(first, 1 / 6, 0.7) > 1e-3
    assert law(others, 0.0, 0.7) > 1e-3
    assert law(others, 0.0, 0.7 * 0.9) < 1e-6
    assert law(first, 1.0, 0.7) < 1e-6
    assert {dict(rates).popitem() for rates in federation.engine.private.steps.values()} == {(1 / 6, 500)}


def test_no_pair_of_samples_shows_more_than_the_cell_says() -> None:
    """A fifth of the samples in a batch, 30 epochs: 150 steps."""
    federation = toy("fedavg", sizes=[40], batch_size=8, dp_sgd={"norm": 0.5, "noise": 1.0})
    federation.engine.private.add(0, 0.2, 150)
    (statement,) = federation.privacy()
    pairs = [composed(pair(1.0, 0.2), 150, 50_000) for pair in (one_more, one_less)]
    shown = max(epsilon_at_least(losses, statement["delta"]) for losses in pairs)
    assert shown <= statement["epsilon"] < 1.6 * shown
    assert statement["epsilon"] == pytest.approx(19.9771, abs=2e-4)
