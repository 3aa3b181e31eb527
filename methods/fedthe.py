"""FedTHE: Jiang and Lin 2023 (ICLR), "Test-Time Robust Personalization for Federated Learning".

A client has a second head of its own on the body that it has trained with the generic head. For every test sample it
finds a mixture of both heads, without using the label. Where the heads agree, the mixture favours the more certain one.
Where they disagree, it favours the own head if the features are closer to the client's mean feature than to the global
one, and else the generic head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.method import (
    METHODS, SGD, Batch, ClassStats, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, compose, hp,
)  # fmt: skip
from methods.two_heads import generic_loss

ABSENT = 1e-8  # replaces the count of a class without samples, so that its logarithm is finite


class Hyper(Hyperparameters):
    """Hyperparameters of FedTHE.

    Attributes:
        gamma: strength of the balancing of the generic model's loss by class counts.
        steps, rate: number of steps and learning rate of Adam on the mixture, for every test sample.
        personal_epochs: epochs of the own head.
    """

    gamma: float = hp(1.0, ge=0, search=Range(0.25, 2.0))
    steps: int = hp(20, ge=0, static=True)
    rate: float = hp(0.1, ge=0, static=True, search=Range(0.01, 1.0, log=True))
    personal_epochs: int = hp(1, ge=0, static=True)

    def degenerate(self) -> list[str]:
        found = []
        if self.gamma == 0:
            found.append("gamma = 0: the generic model of FedTHE is that of FedAvg")
        if 0 in (self.steps, self.rate):
            found.append("steps or rate = 0: both heads always count the same")
        return found


@METHODS.register("fedthe")
class FedTHE(Method):
    """A generic model trained with a balanced loss, an own head per client, and a mixture of both per test sample."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model", "center")

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state |= {"model": w, "center": w.weights.new_zeros(w.tensors()["head.weight"].shape[1])}

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        client.state |= {"w": w, "head": w.part("head"), "center": server.state["center"]}

    def client_round(self, client: Client, down: State) -> Program:
        log_counts = client.label_counts.to(down["center"].dtype).clamp(min=ABSENT).log()
        trained = yield Train({"w": down["model"]}, loss=generic_loss, context={"log_counts": log_counts})
        yield from self.fit(client, trained["w"], self.hp.personal_epochs)
        yield Upload({"model": trained["w"], "center": client.state["center"]})
        return self.ensemble(client, down)

    def fit(self, client: Client, w: Params, epochs: int) -> Program:
        """Train the own head on the features of w, and store their mean."""
        start = {"w": w, "head": client.state["head"]}
        trained = yield Train(start, loss=head_loss, optimizer={"head": SGD()}, epochs=epochs)
        stats = yield ClassStats(w, of="features")
        client.state |= {"w": w, "head": trained["head"], "center": stats.sum.sum(0) / stats.count.sum()}

    def ensemble(self, client: Client, down: State) -> Params:
        """The model that mixes both heads for each sample."""
        own = {name: client.state[name] for name in ("w", "head", "center")}
        return compose(mixed, **own, all=down["center"], steps=self.hp.steps, rate=self.hp.rate)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return self.ensemble(client, down)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains a head on the received body."""
        yield from self.fit(client, down["model"], epochs)
        return self.ensemble(client, down)


def head_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the own head on frozen features."""
    z = model.features(values["w"], batch.x, stats="frozen").detach()
    return batch.mean(functional.cross_entropy(model.head(values["head"], z), batch.y, reduction="none"))


def mixed(model: Any, parts: Values, x: Tensor) -> Tensor:
    """e times the generic head's logits + (1 - e) times the own one's, `[samples, classes]`."""
    z = model.features(parts["w"], x)
    generic, own = model.head(parts["w"], z), model.head(parts["head"], z)
    nearer = (z - parts["all"]).norm(dim=1) - (z - parts["center"]).norm(dim=1)
    e = shares(generic, own, nearer, parts["steps"], parts["rate"]).unsqueeze(1)
    return e * generic + (1 - e) * own


def shares(generic: Tensor, own: Tensor, nearer: Tensor, steps: int, rate: float) -> Tensor:
    """The share e of the generic head, `[samples]`: Adam's steps from 1/2 on two scores whose softmax is (e, 1 - e).

    The loss is s H(e generic + (1 - e) own) + (1 - s) e nearer, with the entropy H of the mixed logits' softmax and the
    cosine s of the heads' probabilities. The gradients of both scores differ only in sign, so one score is enough.

    Args:
        generic, own: logits `[samples, classes]`.
        nearer: `[samples]`, distance of the features from the global mean minus that from the client's own mean.
        steps, rate: number of steps and learning rate of Adam.
    """
    alike = functional.cosine_similarity(generic.softmax(1), own.softmax(1), dim=1)
    score, first, second = torch.zeros(3, *alike.shape).to(alike)
    for t in range(1, steps + 1):
        e = (2 * score).sigmoid()
        log_p = torch.lerp(own, generic, e.unsqueeze(1)).log_softmax(1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(1, keepdim=True)
        slope = -alike * (p * (log_p + entropy) * (generic - own)).sum(1) + (1 - alike) * nearer
        slope = slope * e * (1 - e)
        first, second = torch.lerp(slope, first, 0.9), torch.lerp(slope.square(), second, 0.999)
        score = score - rate * (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
    return (2 * score).sigmoid()
