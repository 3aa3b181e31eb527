"""Asynchronous server rules: FedAsync and FedBuff, for any method whose aggregation is a declared mean.

FedAsync: Xie et al. 2019, "Asynchronous Federated Optimization", Algorithm 1 (server) and section 5.2 (staleness).
FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", Algorithm 1.

Staleness is the number of server versions between a client's download and the version that its upload goes into.
FedAsync's proximal term belongs to the client: FedProx with this rule is the paper's algorithm, FedAvg its case
rho = 0. FedAsync mixes running statistics with the same share as weights, as a convex combination cannot make a
variance negative. A step of FedBuff could, so FedBuff replaces them by the mean of the arrived running statistics.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from bench.method import SERVER_RULES, Arrivals, Hyperparameters, Message, Params, Range, ServerRule, hp, mean


class StalenessHyper(Hyperparameters):
    """Hyperparameters of both rules.

    Attributes:
        staleness, poly_a, hinge_a, hinge_b: the weight s(k) of an upload that is k versions old, Xie et al., section
            5.2: `constant` 1; `polynomial` (1 + k)^-a; `hinge` 1 up to k = b and 1 / (a (k - b) + 1) beyond.
        concurrency: number of clients that train at the same time; None: the cell's participation.
    """

    staleness: Literal["constant", "polynomial", "hinge"] = hp(
        "polynomial", static=True, search=("constant", "polynomial", "hinge")
    )
    poly_a: float = hp(0.5, ge=0)
    hinge_a: float = hp(10.0, gt=0)
    hinge_b: float = hp(4.0, ge=0)
    concurrency: int | None = hp(None, ge=1, static=True)

    def weight(self, k: int) -> float:
        """The weight s(k)."""
        if self.staleness == "polynomial":
            return float((1 + k) ** -self.poly_a)
        if self.staleness == "hinge" and k > self.hinge_b:
            return 1 / (self.hinge_a * (k - self.hinge_b) + 1)
        return 1.0


class AsyncHyper(StalenessHyper):
    """Hyperparameters of FedAsync; `alpha` is the mixing weight of an upload without staleness."""

    alpha: float = hp(0.6, ge=0, le=1, search=Range(0.1, 1))

    def degenerate(self) -> list[str]:
        return ["alpha = 0: the model of FedAsync never moves"] if self.alpha == 0 else []


class BufferHyper(StalenessHyper):
    """Hyperparameters of FedBuff.

    Attributes:
        buffer: number of uploads per server version (the paper's K).
        eta_g: learning rate of the server.
        weights: whether the updates in a buffer are weighted equally or by their clients' training samples.
    """

    buffer: int = hp(10, ge=1, static=True)
    eta_g: float = hp(1.0, gt=0, search=Range(0.1, 10, log=True))
    weights: Literal["equal", "train_size"] = hp("equal", static=True)


@SERVER_RULES.register("fedasync")
class FedAsync(ServerRule):
    """Every upload makes a new version: the server mixes it into the model, with less weight the staler it is."""

    Hyper = AsyncHyper

    @property
    def trigger(self) -> Arrivals:
        return Arrivals(1, self.hp.concurrency)

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """(1 - alpha_t) old + alpha_t upload, with alpha_t = alpha s(staleness)."""
        carrying = [m for m in messages if name in m.values]
        if not carrying:
            return old
        new = old
        for m in carrying:
            new = _mixed(new, m[name], self.hp.alpha * self.hp.weight(m.staleness))
        return new


@SERVER_RULES.register("fedbuff")
class FedBuff(ServerRule):
    """Uploads are collected in a buffer; when it is full, the server adds the mean of their weighted updates."""

    Hyper = BufferHyper

    @property
    def trigger(self) -> Arrivals:
        return Arrivals(self.hp.buffer, self.hp.concurrency)

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """old + eta_g / K sum s(staleness) (upload - the version that its client downloaded)."""
        carrying = [m for m in messages if name in m.values]
        if not carrying:
            return old
        updates = [
            replace(m, values={name: self.hp.weight(m.staleness) * (_main(m[name]) - _main(m.base[name]))})
            for m in carrying
        ]
        equal = self.hp.weights == "equal"
        step = mean(updates, name, equal=equal)
        return _renewed(old, _main(old) + self.hp.eta_g * step, carrying, name, equal=equal)


def _main(value: Params | Tensor) -> Tensor:
    return value.weights if isinstance(value, Params) else value


def _mixed(old: Any, new: Any, share: float) -> Any:
    """(1 - share) old + share new; for a model value both weights and running statistics."""
    if isinstance(old, Params):
        return Params(_mixed(old.weights, new.weights, share), _mixed(old.buffers, new.buffers, share), old.spec)
    return (1 - share) * old + share * new


def _renewed(
    old: Params | Tensor, new: Tensor, messages: Sequence[Message], name: str, *, equal: bool
) -> Params | Tensor:
    """The new weights, with the mean of the running statistics that arrived."""
    if not isinstance(old, Params):
        return new
    return Params(new, mean(messages, name, equal=equal).buffers, old.spec)
