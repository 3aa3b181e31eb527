"""FedCP: Zhang, Hua, Wang, Song, Xue, Ma and Guan 2023 (KDD), "FedCP: Separating Feature Information for Personalized
Federated Learning via Conditional Policy", Algorithm 1.

For every sample, a gate splits each dimension of the features into a part for the client's own head and a part for the
received head.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    compose, hp, join,
)  # fmt: skip

BANDWIDTHS = (10, 15, 20, 50)  # of the Gaussian kernels, as squared distances


class Hyper(Hyperparameters):
    """`lam`: weight of the maximum mean discrepancy between the features of the received and the trained body."""

    lam: float = hp(5.0, ge=0, search=Range(0.1, 10, log=True))


@METHODS.register("fedcp")
class FedCP(Method):
    """A shared body and gate; the gate splits features between the client's own head and the received, frozen head."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("body", "head", "gate")

    def init(self, server: Server) -> None:
        w = server.initial_model()
        d = w.tensors()["head.weight"].shape[1]
        with torch.device("meta"):
            gate = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU())
        server.state |= {
            "body": w.without("head"),
            "head": w.part("head"),
            "gate": server.build(f"fedcp({d}->{2 * d})", gate),
        }

    def init_client(self, server: Server, client: Client) -> None:
        client.state["head"] = server.initial_model().part("head")

    def client_round(self, client: Client, down: State) -> Program:
        context = vector(client.state["head"])
        trained = yield from self.train(client.state["head"], down)
        w, received = trained["w"], down["head"]
        own = client.state["head"] = w.part("head")
        head = own.with_weights((own.weights + received.weights) / 2)
        yield Upload({"body": w.without("head"), "head": head, "gate": trained["gate"]})
        return compose(separated, w=w, gate=trained["gate"], head=received, context=context)

    def train(self, own: Params, down: State, epochs: int | None = None) -> Program:
        """Train body, own head and gate; the received head, and the received body in the penalty, are frozen."""
        w = join(down["body"], own)
        context = {"head": down["head"], "context": vector(own), "old": w}
        return (yield Train({"w": w, "gate": down["gate"]}, loss=separating_loss, epochs=epochs, context=context))

    def personal(self, server: Server, client: Client, down: State) -> Params:
        own = client.state["head"]
        w = join(down["body"], own)
        return compose(separated, w=w, gate=down["gate"], head=down["head"], context=vector(own))

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client's own head starts as the received one."""
        trained = yield from self.train(down["head"], down, epochs)
        w = trained["w"]
        return compose(separated, w=w, gate=trained["gate"], head=down["head"], context=vector(w.part("head")))


def vector(head: Params) -> Tensor:
    """The gate's input that describes the client: the column sums of its head, scaled to norm 1, `[width]`."""
    sums = head.tensors()["head.weight"].sum(0)
    return sums / sums.norm().clamp(min=torch.finfo(sums.dtype).tiny)


def separated(model: Any, parts: Values, x: Tensor) -> Tensor:
    """Logits of the own head for a z + those of the received head for (1 - a) z, `[samples, classes]`."""
    return both_heads(model, parts["w"], parts["gate"], parts["head"], parts["context"], model.features(parts["w"], x))


def both_heads(model: Any, w: Params, gate: Params, head: Params, context: Tensor, z: Tensor) -> Tensor:
    """Logits of features; the gate has two scores for each of their dimensions, whose softmax is (a, 1 - a)."""
    a, rest = model(gate, z * context).unflatten(1, (2, -1)).softmax(1).unbind(1)
    return model.head(w, a * z) + model.head(head, rest * z)


def separating_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam MMD(features, features of the received body)."""
    w = values["w"]
    z = model.features(w, batch.x)
    logits = both_heads(model, w, values["gate"], ctx.head, ctx.context, z)
    likelihood = logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return ctx.hp.lam * discrepancy(z, model.features(ctx.old, batch.x), batch.share) - batch.mean(likelihood)


def discrepancy(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two sets of points `[samples, d]`, summed over the kernels.

    `share` `[samples]` sums to 1 and is 0 for padding.
    """
    return kernel(a, a, share) + kernel(b, b, share) - 2 * kernel(a, b, share)


def kernel(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """Mean over all pairs of the sum of exp(-|a_i - b_j|^2 / (2 bandwidth))."""
    squared = a.square().sum(1).unsqueeze(1) + b.square().sum(1) - 2 * a @ b.T
    return torch.stack([share @ (-squared / (2 * width)).exp() @ share for width in BANDWIDTHS]).sum()
