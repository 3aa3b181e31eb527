"""FedRoD: Chen and Chao 2022, "On Bridging Generic and Personalized Federated Learning for Image Classification".

The generic predictor is trained with the balanced softmax. The personalized predictor adds the logits of a second head:
the client's own linear head, or one that a shared hyper-network makes from the client's class distribution. With
`head_phase: after` the client's own head trains after the upload, so that training overlaps with communication.
"""

from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from bench.method import (
    METHODS, SGD, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, hp, join,
)  # fmt: skip
from methods.two_heads import generic_loss, hyper_losses, linear_losses, made_head, personal_loss

ABSENT = 1e-8  # replaces the count of a class without samples, so that its logarithm is finite


class Hyper(Hyperparameters):
    """Hyperparameters of FedRoD; `personal_lr` None: the cell's learning rate.

    Attributes:
        head_phase: when the linear head trains: `joint` with the generic model, or `after` its upload.
        personal_epochs: epochs of the phase `after`; None: the cell's epochs.
    """

    gamma: float = hp(1.0, ge=0, search=Range(0.25, 2.0))
    head: Literal["linear", "hyper"] = hp("linear", static=True)
    hidden: int = hp(16, ge=1, static=True)
    personal_lr: float | None = hp(None, ge=0, static=True)
    head_phase: Literal["joint", "after"] = hp("joint", static=True)
    personal_epochs: int | None = hp(None, ge=0, static=True)

    @model_validator(mode="after")
    def _only_an_own_head_can_wait(self) -> "Hyper":
        if self.head_phase == "after" and self.head == "hyper":
            raise ValueError("head_phase 'after' needs head 'linear': a hyper-network is part of the upload")
        return self

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
        context = {
            "log_counts": client.label_counts.to(w.weights.dtype).clamp(min=ABSENT).log(),
            "shares": class_shares(client, w),
        }
        if self.hp.head_phase == "after":
            trained = yield Train({"w": w}, loss=generic_loss, context=context)
            yield Upload({"model": trained["w"]})
            personal = yield Train(
                {"w": trained["w"], "personal": client.state["head"]},
                loss=personal_loss,
                optimizer={"personal": SGD(lr=self.hp.personal_lr)},
                epochs=self.hp.personal_epochs,
            )
            client.state["head"] = personal["personal"]
            return trained["w"]
        trained = yield Train(
            {"w": w, "personal": client.state["head"] if linear else down["hyper"]},
            loss=linear_losses if linear else hyper_losses,
            optimizer={"w": SGD(), "personal": SGD(lr=self.hp.personal_lr)},
            context=context,
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
