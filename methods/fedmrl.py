"""FedMRL: Yi, Yu, Ren, Wang, Liu and Li 2024 (NeurIPS), "Federated Model Heterogeneous Matryoshka Representation
Learning", Algorithm 1.

Every client trains its own model together with a copy of a shared, smaller one. A projector of its own fuses the
features of both. The own head reads the fused representation, the shared head only its first entries, as many as the
shared model has features: the smaller doll in the larger one. Only the shared model, with the cell's architecture, is
exchanged, so clients may have models of different architectures.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, Values, compose, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedMRL.

    Attributes:
        shared_weight: weight of the shared head's loss (m^G in the paper).
        own_weight: weight of the own head's loss (m^F in the paper).
        average: weigh the shared models by samples, or all clients alike (HtFLlib).
        projector: whether a client keeps its trained projector, or takes the initial one for every round and for
            predictions (HtFLlib).
    """

    shared_weight: float = hp(1.0, ge=0)
    own_weight: float = hp(1.0, ge=0)
    average: Literal["samples", "clients"] = "samples"
    projector: Literal["kept", "initial"] = "kept"


@METHODS.register("fedmrl")
class FedMRL(Method):
    """A shared small model whose features are fused with those of every client's own model."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("model",)
    mixes_models = True

    def init_client(self, server: Server, client: Client) -> None:
        """Raises ValueError if the client's model has fewer features than the shared one."""
        model = server.initial_model(client.id)
        shared, wide = (w.tensors()["head.weight"].shape[1] for w in (server.initial_model(), model))
        if wide < shared:
            raise ValueError(
                f"FedMRL's shared model needs no more features than each client's: {model.spec.arch} has {wide}, the "
                f"cell's model {shared}"
            )
        with torch.device("meta"):
            projector = nn.Linear(shared + wide, wide)
        layer = server.build(f"fedmrl({shared}+{wide}->{wide})", projector).tensors()
        client.state["own"] = model
        client.state["projector"] = torch.cat([layer["weight"], layer["bias"].unsqueeze(1)], dim=1)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield from self.train(client, down)
        client.state["own"] = trained["own"]
        if self.hp.projector == "kept":
            client.state["projector"] = trained["projector"]
        yield Upload({"model": trained["shared"]}, weight=1.0 if self.hp.average == "clients" else None)
        return compose(own_logits, **trained.values)

    def train(self, client: Client, down: State, epochs: int | None = None) -> Program:
        """Train all three networks on the sum of both heads' losses."""
        parts = {"shared": down["model"], "own": client.state["own"], "projector": client.state["projector"]}
        return (yield Train(parts, loss=nested_loss, epochs=epochs))

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return compose(own_logits, shared=down["model"], own=client.state["own"], projector=client.state["projector"])

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains like the others, starting from the initial model and projector."""
        trained = yield from self.train(client, down, epochs)
        return compose(own_logits, **trained.values)


def fused(model: Any, parts: Values, x: Tensor) -> Tensor:
    """The projected features of both models, `[samples, features of the own model]`.

    A row of the projector has the weights of all features for one entry, and its bias.
    """
    both = torch.cat([model.features(parts["shared"], x), model.features(parts["own"], x)], dim=1)
    return both @ parts["projector"][:, :-1].T + parts["projector"][:, -1]


def own_logits(model: Any, parts: Values, x: Tensor) -> Tensor:
    """The own head's logits of the fused representation, `[samples, classes]`."""
    logits: Tensor = model.head(parts["own"], fused(model, parts, x))
    return logits


def nested_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """m^G CE(shared head of the first entries) + m^F CE(own head of all entries)."""
    z = fused(model, values, batch.x)
    narrow = values["shared"].tensors()["head.weight"].shape[1]
    total: Any = 0
    for name, part, weight in (("shared", z[:, :narrow], ctx.hp.shared_weight), ("own", z, ctx.hp.own_weight)):
        logits = model.head(values[name], part).log_softmax(1)
        total = total - weight * logits.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return batch.mean(total)
