"""FedDF: Lin, Kong, Stich and Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS
2020, Algorithm 1, for clients of one architecture.

FedAvg, but the mean of the uploaded models is only the server's starting point: the server then distils the mean of the
uploaded models' logits on public samples into it. Clients train as in FedAvg.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bench.method import (
    METHODS, Adam, Batch, Client, Feed, Hyperparameters, Message, Method, Predict, Program, Server, State, Train,
    Upload, Values, cross_entropy, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedDF."""

    distil_steps: int = hp(1000, ge=0, static=True)
    distil_batch: int = hp(128, ge=1, static=True)
    distil_lr: float = hp(1e-3, gt=0, static=True)

    def degenerate(self) -> list[str]:
        return ["distil_steps = 0: FedDF is FedAvg"] if self.distil_steps == 0 else []


@METHODS.register("feddf")
class FedDF(Method):
    """FedAvg whose server distils the ensemble of the uploaded models into their mean, on public samples."""

    Hyper = Hyper
    mean_of = ("model",)
    public = True

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        logits = []
        for m in messages:
            logits.append((yield Predict(m["model"], "public", "logits")))
        student = yield Train(
            {"w": mean(messages, "model")},
            loss=divergence,
            steps=self.hp.distil_steps,
            feed=Feed("public", self.hp.distil_batch),
            optimizer=Adam(self.hp.distil_lr, schedule="cosine"),
            context={"teacher": torch.stack(logits).mean(0).log_softmax(1)},
        )
        server.state["model"] = student["w"]


def divergence(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean over public samples of KL(teacher || student); the teacher is given as log-probabilities."""
    student = model(values["w"], batch.x).log_softmax(1)
    kl = nn.functional.kl_div(student, ctx.teacher[batch.index], reduction="none", log_target=True)
    return batch.mean(kl.sum(1))
