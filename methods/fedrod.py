"""FedRoD: Chen and Chao 2022, "On Bridging Generic and Personalized Federated Learning for Image Classification".

The generic predictor is trained with the balanced softmax. The personalized predictor adds the logits of a second head:
a linear one of the client's own, or one that a shared hyper-network makes from the client's class distribution.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.method import (
    METHODS, SGD, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    hp, join,
)  # fmt: skip

ABSENT = 1e-8  # stands for the count of a class without samples: its logarithm is finite


class Hyper(Hyperparameters):
    """Hyperparameters of FedRoD; `personal_lr` None: the cell's learning rate."""

    gamma: float = hp(1.0, ge=0, search=Range(0.25, 2.0))
    head: Literal["linear", "hyper"] = hp("linear", static=True)
    hidden: int = hp(16, ge=1, static=True)
    personal_lr: float | None = hp(None, ge=0, static=True)

    def degenerate(self) -> list[str]:
        found = []
        if self.gamma == 0:
            found.append("gamma = 0: the generic model of FedRoD is that of FedAvg")
        if self.personal_lr == 0 and self.head == "linear":
            found.append("personal_lr = 0: the personalized models of FedRoD are the generic one")
        return found


@METHODS.register("fedrod")
class FedRoD(Method):
    """A generic model trained as if classes were balanced, and a personalized head that adds to its logits."""

    Hyper = Hyper
    trains = "both"

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.mean_of = ("model",) if hyper.head == "linear" else ("model", "hyper")

    def init(self, server: Server) -> None:
        model = server.state["model"] = server.initial_model()
        if self.hp.head == "hyper":
            classes, hidden, size = server.num_classes, self.hp.hidden, model.part("head").spec.d
            with torch.device("meta"):
                module = nn.Sequential(nn.Linear(classes, hidden), nn.ReLU(), nn.Linear(hidden, size))
            server.state["hyper"] = server.build(f"fedrod({classes}->{hidden}->{size})", module)

    def init_client(self, server: Server, client: Client) -> None:
        if self.hp.head == "linear":
            head = server.initial_model().part("head")
            client.state["head"] = head.with_weights(torch.zeros_like(head.weights))

    def client_round(self, client: Client, down: State) -> Program:
        linear, w = self.hp.head == "linear", down["model"]
        trained = yield Train(
            {"w": w, "personal": client.state["head"] if linear else down["hyper"]},
            loss=linear_losses if linear else hyper_losses,
            optimizer={"w": SGD(), "personal": SGD(lr=self.hp.personal_lr)},
            context={
                "log_counts": client.label_counts.to(w.weights.dtype).clamp(min=ABSENT).log(),
                "shares": class_shares(client, w),
            },
        )
        if linear:
            client.state["head"] = trained["personal"]
            yield Upload({"model": trained["w"]})
        else:
            yield Upload({"model": trained["w"], "hyper": trained["personal"]})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        model = down["model"]
        generic = model.part("head")
        if self.hp.head == "linear":
            extra = client.state["head"].weights
        else:
            extra = made_head(down["hyper"], class_shares(client, model))
        return join(model.without("head"), generic.with_weights(generic.weights + extra))


def class_shares(client: Client, like: Params) -> Tensor:
    """`[classes]`: the client's class distribution."""
    return client.label_counts.to(like.weights.dtype) / client.n_train


def made_head(hyper: Params, shares: Tensor) -> Tensor:
    """The hyper-network: two dense layers from a class distribution `[classes]` to the flat weights of a head."""
    t = hyper.tensors()
    return t["2.weight"] @ torch.relu(t["0.weight"] @ shares + t["0.bias"]) + t["2.bias"]


def linear_losses(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Balanced softmax of the generic model + cross-entropy of the sum of both heads' logits."""
    return _losses(model, values["w"], values["personal"], batch, ctx)


def hyper_losses(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The same with a head that the hyper-network makes."""
    head = values["w"].part("head")
    return _losses(model, values["w"], head.with_weights(made_head(values["personal"], ctx.shares)), batch, ctx)


def _losses(model: Any, w: Params, personal: Params, batch: Batch, ctx: Any) -> Tensor:
    """CE(logits + gamma log n_i, y) moves `w`; CE(stop[logits] + personal head(stop[features]), y) its second head."""
    z = model.features(w, batch.x)
    logits = model.head(w, z)
    generic = functional.cross_entropy(logits + ctx.hp.gamma * ctx.log_counts, batch.y, reduction="none")
    both = logits.detach() + model.head(personal, z.detach())
    return batch.mean(generic + functional.cross_entropy(both, batch.y, reduction="none"))
