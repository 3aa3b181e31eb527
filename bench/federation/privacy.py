"""Differential privacy of a cell: what noise is worth, on what clients send or in their training, and what it does not
protect.

Noise on the sum (`on: sum`) is counted for two federations of which one has a client more: a clipped update changes the
sum by its norm at most. Noise on each update (`on: each`) is counted for any two data sets of one client, whose updates
are twice the norm apart at most; that it takes part is not hidden. Values that one client sends in one round are
released together. Epsilon is Opacus' bound by Rényi divergences; with fewer clients than all in a round it is that of
Poisson sampling (each takes part by its own coin), which our rounds of a fixed number only approximate.

Noise in training (`dp_sgd`) is counted for two data sets of a client of which one has a sample more, by all noisy steps
that the client has taken, whatever they were for; the sampling rate is the share of its samples in a batch.
"""

import functools
import importlib.metadata
import importlib.util
import math
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.engine.private import PrivateSteps
from bench.errors import UserError
from bench.method import Everyone, Method, ServerRule
from bench.settings import DEFAULT_SELECTION, Settings

PACKAGE = "opacus"
"""The accountant."""
_ORDERS = [*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 64, 80, 96, 128, 192, 256, 512, 1024]
"""Orders of Rényi divergence: Opacus' own, and larger ones, without which an epsilon far below 1 would be too large."""

CHOICES = "what validation scores chose: the reported round, settings"
"""What no noise covers in any cell."""

_POOLED = "the mean and deviation of all clients' samples, by which these are normalised"
_EACH_ITS_MEAN = "the mean and deviation of each client, by which its samples are normalised"

Mechanism = tuple[float, float, int]
"""Gaussian noise in units of the sensitivity, the sampling rate, and how many times it was released."""


def epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """The epsilon of all releases together, by Opacus' bound; infinite without noise, 0 without a release."""
    if not all(noise > 0 for noise, _, _ in mechanisms):
        return math.inf
    if not mechanisms:
        return 0.0
    analysis = _analysis()
    divergence = sum(analysis.compute_rdp(q=q, noise_multiplier=z, steps=n, orders=_ORDERS) for z, q, n in mechanisms)
    with warnings.catch_warnings():  # that another order might give a smaller bound: this one holds
        warnings.filterwarnings("ignore", message="Optimal order is", category=UserWarning)
        return float(analysis.get_privacy_spent(orders=_ORDERS, rdp=divergence, delta=delta)[0])


def _analysis_file() -> Path | None:
    """Opacus' analysis of Rényi divergences; None if it is not installed."""
    package = importlib.util.find_spec(PACKAGE)
    folders = package.submodule_search_locations or [] if package else []
    files = [Path(folder, "accountants", "analysis", "rdp.py") for folder in folders]
    return next((file for file in files if file.is_file()), None)


@functools.cache
def _analysis() -> ModuleType:
    """The module of `_analysis_file`, alone: its package imports all that trains with Opacus, which takes seconds."""
    file = _analysis_file()
    assert file is not None, "`check_privacy` refuses such cells"
    spec = importlib.util.spec_from_file_location("opacus_rdp", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noise_of(settings: Settings) -> dict[str, Any] | None:
    """The entry `gaussian` of a cell's channel; None if there is none."""
    return next((operation for operation in settings.channel if operation["name"] == "gaussian"), None)


def check_privacy(settings: Settings, method: Method) -> None:
    """Refuse noise whose epsilon would not be that of what the server makes of the uploads.

    Raises:
        UserError: the accountant is not installed; the method is a bound, which DP-SGD is not for; samples pass from
            client to client, by which epsilon is counted; noise on the sum goes with an operation after it, with a
            server that does not take a plain mean of a round, with clients that are not drawn uniformly, or with a
            method that has all clients in every round whatever `participation` says; or clients send bits of
            `adaptive_clip` under noise on each update.
    """
    noise = noise_of(settings)
    if (noise is not None or settings.dp_sgd is not None) and _analysis_file() is None:
        raise UserError("noise needs an accountant: pip install 'pfleague[privacy]', or pip install opacus")
    if settings.dp_sgd is not None and method.bound:
        raise UserError(f"dp_sgd: method {settings.method!r} trains on the samples of all clients; take out `dp_sgd`")
    each = noise is not None and noise["on"] == "each"
    if (settings.dp_sgd is not None or each) and any(change.exchange for change in settings.timeline):
        raise UserError(
            "timeline: `exchange` passes samples on to other clients, and epsilon counts what each client has done, "
            f"not what was done with its samples; leave out `exchange` or {'`gaussian`' if each else '`dp_sgd`'}"
        )
    if noise is None:
        return
    if each:
        if any(operation["name"] == "adaptive_clip" for operation in settings.channel):
            raise UserError("channel: adaptive_clip counts bits of all clients: take `on: sum` of gaussian, or clip")
        return
    problem = _of_sum(settings, method)
    if problem:
        raise UserError(f"channel: noise on the sum of a round's updates: {problem}")


def _of_sum(settings: Settings, method: Method) -> str:
    """The reason why a cell cannot have noise on the sum; empty if it can."""
    kind, each = type(method), "take `on: each` of gaussian"
    if settings.channel[-1]["name"] != "gaussian":
        return (
            f"{settings.channel[-1]['name']!r} after gaussian changes each update, which has a part of the noise only, "
            f"before they are added up; take it out, or {each}"
        )
    if settings.server is not None:
        return f"server rule {settings.server['name']!r} does not take a plain mean; leave out `server`, or {each}"
    if type(method.rule) is not ServerRule or not isinstance(method.trigger, Everyone):
        return f"method {settings.method!r} has a server rule of its own; {each}"
    if not method.mean_of or kind.aggregate is not Method.aggregate or kind.reply is not Method.reply:
        return f"method {settings.method!r} does more with uploads than a mean; {each}"
    if settings.participation < 1 and method.everyone:
        return f"method {settings.method!r} has all clients in every round; leave out `participation`"
    if settings.participation < 1 and settings.selection != DEFAULT_SELECTION:
        return f"selection {settings.selection!r} does not draw clients uniformly; leave out `selection`"
    return ""


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
        self._senders: Counter[Hashable] = Counter()  # by value of this version: clients that sent it
        self._versions: Counter[tuple[float, float]] = Counter()  # by noise and sampling rate of a version: versions

    def add(self, client: int, value: Hashable) -> None:
        """Count a value that a client sent; equal `value` are summed."""
        self._sent[client] += 1
        self._senders[value] += 1

    def close(self, clients: int, rate: float) -> None:
        """Count what a version released.

        Args:
            clients: how many its round had, each with its share of the noise.
            rate: the share that these are of the clients that were there, who may change with the rounds.
        """
        if self._senders and self._noise["on"] == "sum":
            shares = [clients / senders / self._noise["noise"] ** 2 if self._noise["noise"] else math.inf
                      for senders in self._senders.values()]  # fmt: skip
            if self._count_noise is not None:
                bits = (2 * self._count_noise * clients) ** -2 if self._count_noise else math.inf
                shares += [bits] * len(shares)
            self._versions[sum(shares) ** -0.5, rate] += 1
        self._senders.clear()

    def mechanisms(self) -> list[Mechanism]:
        """All that was released, as one client is concerned that sent most."""
        if self._noise["on"] == "sum":
            return [(noise, rate, count) for (noise, rate), count in sorted(self._versions.items())]
        return [(self._noise["noise"] / 2, 1.0, count) for count in [max(self._sent.values(), default=0)] if count]

    def state(self) -> dict[str, Any]:
        """All counts, in plain values."""
        return {"sent": dict(self._sent), "versions": [[*of, count] for of, count in self._versions.items()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the counts of `state`; those of earlier versions have no rates, and 1 is the safe one."""
        self._sent = Counter(state["sent"])
        self._versions = Counter({(of[0], of[1] if len(of) > 1 else 1.0): count for *of, count in state["versions"]})


def client_statement(settings: Settings, method: Method, releases: Releases, passed: Sequence[str]) -> dict[str, Any]:
    """The promise of a cell to its clients: epsilon, and what is not protected, in plain values.

    Args:
        settings, method: of the cell.
        releases: what its channel has released.
        passed: what clients sent that the channel let pass, in words.
    """
    noise = noise_of(settings)
    assert noise is not None, "a channel without noise has no releases"
    mechanisms, on_sum = releases.mechanisms(), noise["on"] == "sum"
    rates = [rate for _, rate, _ in mechanisms] or [1.0]
    unprotected = list(passed)
    if on_sum:
        unprotected.append("single uploads: whoever adds them up is trusted")
    else:
        unprotected += ["that a client takes part", "numbers of samples, the weights of the mean"]
    if settings.normalise == "pooled":
        unprotected.append(_POOLED)
    if method.trains != "gm":
        unprotected.append("personalized models, each trained on its client's data without noise")
    return {
        "protects": "client",
        "noise": noise["noise"],
        "on": noise["on"],
        "adjacency": "a client more or less" if on_sum else "any two data sets of a client",
        "sampling_rate": max(rates),
        "sampling": "none" if min(rates) == 1 else "counted as Poisson's; each round draws a fixed number",
        "releases": sum(count for _, _, count in mechanisms),
        **_spent(mechanisms, noise["delta"]),
        "unprotected": [*unprotected, CHOICES],
    }


def sample_statement(settings: Settings, private: PrivateSteps) -> dict[str, Any]:
    """The promise of DP-SGD to the samples of each client: epsilon, and what is not protected, in plain values."""
    training = settings.dp_sgd
    assert training is not None, "a cell without noise in training promises nothing"
    clients = {
        tuple((training.noise, rate, steps) for rate, steps in sorted(rates.items()) if steps)
        for rates in private.steps.values()
    }
    spent = [(epsilon(mechanisms, training.delta), mechanisms) for mechanisms in sorted(clients)]
    _, most = max(spent, default=(0.0, ()))
    looks = [f"what {', '.join(sorted(private.looks))} computed of samples"] if private.looks else []
    if settings.normalise is not None:
        looks.append(_POOLED if settings.normalise == "pooled" else _EACH_ITS_MEAN)
    return {
        "protects": "sample",
        "noise": training.noise,
        "norm": training.norm,
        "adjacency": "a sample of a client more or less",
        "sampling_rate": max((rate for _, rate, _ in most), default=1.0),
        "sampling": "counted as Poisson's; batches are drawn without replacement",
        "releases": sum(steps for _, _, steps in most),
        **_spent(most, training.delta),
        "unprotected": [*looks, "numbers of samples, and of labels where a method uses them", CHOICES],
    }


def _spent(mechanisms: Sequence[Mechanism], delta: float) -> dict[str, Any]:
    """Epsilon, rounded up, and what it is of; null is infinite."""
    spent = epsilon(mechanisms, delta)
    version = importlib.metadata.version(PACKAGE)
    return {
        "epsilon": None if math.isinf(spent) else math.ceil(1e4 * spent) / 1e4,
        "delta": delta,
        "accountant": f"{PACKAGE} {version}, Rényi divergences",
    }
