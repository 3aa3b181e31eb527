"""Differential privacy of a cell: what noise is worth, on what clients send or in their training, and what it does not
protect.

Each epsilon is an upper bound for the neighbours that its statement names. With noise on the sum (`on: sum`) these are
a client that sends its clipped updates and the same client sending nothing, so that the sum moves by the norm at most.
All clients are in a round then, or each by its own coin (`selection: poisson`). Where a round has a fixed number of
clients, one that leaves makes room for another: the neighbours are a client and another in its place, and the sum moves
by twice the norm. Noise on each update (`on: each`) is counted for any two data sets of one client, whose updates are
twice the norm apart at most; that it takes part is not hidden. What one client sends in one round is released together.

Noise in training (`dp_sgd`) is counted for a sample that is in the batches of its client, in each by its own coin, and
for the same sample left out, by all noisy steps that the client has taken, whatever they were for.

The accountant is `dp-accounting`, by Rényi divergences: those of the Poisson-sampled Gaussian mechanism (Mironov,
Talwar and Zhang 2019), and of one sampled without replacement (Wang, Balle and Kasiviswanathan 2019, "Subsampled Rényi
Differential Privacy and Analytical Moments Accountant", theorem 9).
"""

import importlib.metadata
import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from bench.engine.private import PrivateSteps
from bench.errors import UserError
from bench.method import Everyone, Method, ServerRule
from bench.settings import DEFAULT_SELECTION, POISSON, Settings, noise_of

PACKAGE = "dp_accounting"
"""The accountant."""
_ORDERS = [*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 64, 80, 96, 128, 192, 256, 512, 1024]
"""Orders of Rényi divergence; without the large ones an epsilon far below 1 would be too large."""

CHOICES = "scores on test and validation samples, and what they chose: the reported round, settings"
"""What no noise covers in any cell."""

_POOLED = "the mean and deviation of all clients' samples, by which these are normalised"
_EACH_ITS_MEAN = "the mean and deviation of each client, by which its samples are normalised"

Mechanism = tuple[float, float, int]
"""Gaussian noise in units of the sensitivity, the sampling rate, and how many times it was released."""

_COINS = "Poisson, each by its own coin"
_FIXED = "a fixed number without replacement"


def epsilon(mechanisms: Sequence[Mechanism], delta: float, *, fixed: bool = False) -> float:
    """An upper bound of the epsilon of all releases together; infinite without noise, 0 without a release.

    Args:
        mechanisms: what was released; the noise is in units of what one neighbour more or less moves.
        delta: the probability with which epsilon may be exceeded.
        fixed: a release has a fixed number drawn without replacement, in place of Poisson sampling.
    """
    if not all(noise > 0 for noise, _, _ in mechanisms):
        return math.inf
    if not mechanisms:
        return 0.0
    if not fixed:
        return _spent_by([_event(*mechanism) for mechanism in mechanisms], delta, fixed=False)
    unsampled = [_event(z, 1.0, count) for z, _, count in mechanisms]  # also holds, and is smaller at rates near 1
    sampled = [_event(*mechanism, fixed=True) for mechanism in mechanisms]
    return min(_spent_by(events, delta, fixed=True) for events in (sampled, unsampled))


def _event(noise: float, rate: float, count: int, *, fixed: bool = False) -> Any:
    import dp_accounting as dp

    release: Any = dp.GaussianDpEvent(noise)
    if fixed and rate < 1:  # the bound depends on the share of the two numbers only
        release = dp.SampledWithoutReplacementDpEvent(1, rate, release)
    elif rate < 1:
        release = dp.PoissonSampledDpEvent(rate, release)
    return dp.SelfComposedDpEvent(release, count)


def _spent_by(events: Iterable[Any], delta: float, *, fixed: bool) -> float:
    import dp_accounting as dp
    from absl import logging
    from dp_accounting import rdp

    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.REPLACE_SPECIAL
    accountant, verbosity = rdp.RdpAccountant(_ORDERS, relation), logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # that an order is left out, which makes the bound larger
    try:
        for event in events:
            accountant.compose(event)
        return float(accountant.get_epsilon(delta))
    finally:
        logging.set_verbosity(verbosity)


def check_privacy(settings: Settings, method: Method) -> None:
    """Refuse noise whose epsilon would not be that of what the server makes of the uploads.

    Raises:
        UserError: the accountant is not installed; the method is a bound, which DP-SGD is not for; samples pass from
            client to client, by which epsilon is counted; noise on the sum goes with an operation after it, with a
            server that does not take a plain mean of a round, with clients that are not drawn uniformly, or with a
            method that has all clients in every round whatever `participation` says; or clients send bits of
            `adaptive_clip` under noise on each update.
    """
    noise = noise_of(settings.channel)
    if (noise is not None or settings.dp_sgd is not None) and importlib.util.find_spec(PACKAGE) is None:
        raise UserError("noise needs an accountant: pip install 'pfleague[privacy]', or pip install dp-accounting")
    if settings.dp_sgd is not None and method.bound:
        raise UserError(f"dp_sgd: method {settings.method!r} trains on the samples of all clients; take out `dp_sgd`")
    each = noise is not None and noise["on"] == "each"
    if (settings.dp_sgd is not None or each) and any(change.exchange for change in settings.timeline):
        raise UserError(
            "timeline: `exchange` passes samples on to other clients, and epsilon counts what each client has done, "
            f"not what was done with its samples; leave out `exchange` or {'`gaussian`' if each else '`dp_sgd`'}"
        )
    if each and any(operation.name == "adaptive_clip" for operation in settings.channel):
        raise UserError("channel: adaptive_clip counts bits of all clients: take `on: sum` of gaussian, or clip")
    if noise is not None and not each and (problem := _of_sum(settings, method)):
        raise UserError(f"channel: noise on the sum of a round's updates: {problem}")


def _of_sum(settings: Settings, method: Method) -> str:
    """The reason why a cell cannot have noise on the sum; empty if it can."""
    kind, name, each = type(method), f"method {settings.method!r}", "take `on: each` of gaussian"
    last, sampled = settings.channel[-1].name, settings.participation < 1
    own_rule = type(method.rule) is not ServerRule or not isinstance(method.trigger, Everyone)
    mean_only = method.mean_of and kind.aggregate is Method.aggregate and kind.reply is Method.reply
    uniform = settings.selection in (DEFAULT_SELECTION, POISSON)
    problems = {
        f"{last!r} after gaussian changes each update before the sum; take it out, or {each}": last != "gaussian",
        f"server rule {settings.server and settings.server.name!r} does not take a plain mean; leave out `server`, or "
        f"{each}": settings.server is not None,
        f"{name} has a server rule of its own; {each}": own_rule,
        f"{name} does more with uploads than a mean; {each}": not mean_only,
        f"{name} has all clients in every round; leave out `participation`": sampled and method.everyone,
        f"selection {settings.selection!r} does not draw clients uniformly; take {POISSON!r}": sampled and not uniform,
    }
    return next((problem for problem, is_there in problems.items() if is_there), "")


class Releases:
    """Count of what a channel with noise has released.

    Args:
        noise: the entry `gaussian` of the channel.
        count_noise: of `adaptive_clip`; None without it.
    """

    def __init__(self, noise: dict[str, Any], count_noise: float | None) -> None:
        self._noise = noise
        self._count_noise = count_noise
        self._sent: Counter[int] = Counter()  # by client: values with noise on each
        self._sums = 0  # noised sums of this version
        self._versions: Counter[tuple[float, float]] = Counter()  # by noise and sampling rate of a version: versions

    def add(self, client: int) -> None:
        """Count a value with noise of its own."""
        self._sent[client] += 1

    def add_sum(self) -> None:
        """Count a sum with noise."""
        self._sums += 1

    def close(self, clients: int, rate: float) -> None:
        """Count what a version released.

        Args:
            clients: how many a round has on average.
            rate: the share that these are of the clients that were there, who may change with the rounds.
        """
        if self._sums:
            worth = self._noise["noise"] ** -2 if self._noise["noise"] else math.inf
            if self._count_noise is not None:  # a client moves the count of bits, less one half each, by a half
                worth += (2 * self._count_noise * clients) ** -2 if self._count_noise else math.inf
            self._versions[(self._sums * worth) ** -0.5, rate] += 1
        self._sums = 0

    def mechanisms(self) -> list[Mechanism]:
        """All that was released, as one client is concerned that sent most, in units of the clipping norm."""
        if self._noise["on"] == "sum":
            return [(noise, rate, count) for (noise, rate), count in sorted(self._versions.items())]
        return [(self._noise["noise"], 1.0, count) for count in [max(self._sent.values(), default=0)] if count]

    def state(self) -> dict[str, Any]:
        """All counts, in plain values."""
        return {"sent": dict(self._sent), "versions": [[*of, count] for of, count in self._versions.items()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the counts of `state`."""
        self._sent = Counter(state["sent"])
        self._versions = Counter({(noise, rate): count for noise, rate, count in state["versions"]})


def client_statement(settings: Settings, method: Method, releases: Releases, passed: Sequence[str]) -> dict[str, Any]:
    """The promise of a cell to its clients: epsilon, and what is not protected, in plain values.

    `passed` is what clients sent that the channel let pass, in words.
    """
    noise = noise_of(settings.channel)
    assert noise is not None, "a channel without noise has no releases"
    mechanisms, on_sum = releases.mechanisms(), noise["on"] == "sum"
    rates = [rate for _, rate, _ in mechanisms] or [1.0]
    unprotected = list(passed)
    if on_sum:
        unprotected.append("single uploads: whoever adds them up is trusted")
    else:
        unprotected.append("that a client takes part")
    sampling = "none"
    if min(rates) < 1:
        sampling = _COINS if settings.selection == POISSON else _FIXED
        unprotected.append("who is in which round, and how many, in records of bytes, seconds and events")
    if settings.normalise == "pooled":
        unprotected.append(_POOLED)
    if method.trains != "gm":
        unprotected.append("personalized models, each trained on its client's data without noise")
    neighbours = "a client, or that client sending nothing" if on_sum else "any two data sets of a client"
    if sampling == _FIXED:
        neighbours = "a client, or another one in its place"
    return {
        "protects": "client",
        "noise": noise["noise"],
        "on": noise["on"],
        "adjacency": neighbours,
        "sampling_rate": max(rates),
        "sampling": sampling,
        "releases": sum(count for _, _, count in mechanisms),
        **_spent(mechanisms, noise["delta"], apart=1 if on_sum and sampling != _FIXED else 2, fixed=sampling == _FIXED),
        "unprotected": [*unprotected, CHOICES],
    }


def sample_statement(settings: Settings, private: PrivateSteps, passed: Sequence[str]) -> dict[str, Any]:
    """The promise of DP-SGD to the samples of each client: epsilon, and what is not protected, in plain values.

    `passed` is what clients sent beside model values, in words.
    """
    training = settings.dp_sgd
    assert training is not None, "a cell without noise in training promises nothing"
    clients = {
        tuple((training.noise, rate, steps) for rate, steps in sorted(rates.items()) if steps)
        for rates in private.steps.values()
    }
    spent = [(epsilon(mechanisms, training.delta), mechanisms) for mechanisms in sorted(clients)]
    _, most = max(spent, default=(0.0, ()))
    looks = [f"what {', '.join(sorted(private.looks))} computed of samples"] if private.looks else []
    if passed:
        looks.append(f"as far as it does not follow from noisy steps: {', '.join(passed)}")
    if settings.normalise is not None:
        looks.append(_POOLED if settings.normalise == "pooled" else _EACH_ITS_MEAN)
    sampled = any(rate < 1 for _, rate, _ in most)
    return {
        "protects": "sample",
        "noise": training.noise,
        "norm": training.norm,
        "adjacency": "a sample of a client, or that sample left out",
        "sampling_rate": max((rate for _, rate, _ in most), default=1.0),
        "sampling": _COINS if sampled else "none",
        "releases": sum(steps for _, _, steps in most),
        **_spent(most, training.delta, apart=1),
        "unprotected": [*looks, "numbers of samples", CHOICES],
    }


def _spent(mechanisms: Sequence[Mechanism], delta: float, *, apart: int, fixed: bool = False) -> dict[str, Any]:
    """Epsilon, rounded up, and what it is of; null is infinite.

    The mechanisms' noise is in units of the clipping norm, and neighbours are `apart` norms apart.
    """
    spent = epsilon([(z / apart, rate, n) for z, rate, n in mechanisms], delta, fixed=fixed)
    return {
        "epsilon": None if math.isinf(spent) else math.ceil(1e4 * spent) / 1e4,
        "delta": delta,
        "accountant": f"dp-accounting {importlib.metadata.version('dp-accounting')}, Rényi divergences",
    }
