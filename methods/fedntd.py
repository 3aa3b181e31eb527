"""FedNTD: Lee, Jeong, Shin, Bae and Yun 2022 (NeurIPS), "Preservation of the Global Knowledge by Not-True Distillation
in Federated Learning", eq. 5 to 7.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Program, Range, State, Train, Upload, Values, hp,
)  # fmt: skip

FAR = 1e4  # subtracted from a logit: its probability becomes 0, but the logarithm stays finite


class Hyper(Hyperparameters):
    """Hyperparameters of FedNTD; the paper uses beta = 1 and tau = 1."""

    beta: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    tau: float = hp(1.0, gt=0)

    def degenerate(self) -> list[str]:
        return ["beta = 0: FedNTD is FedAvg"] if self.beta == 0 else []


@METHODS.register("fedntd")
class FedNTD(Method):
    """FedAvg whose clients preserve the received model's predictions for all classes except the true one."""

    Hyper = Hyper
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=not_true_loss, context={"received": down["model"]})
        yield Upload({"model": trained["w"]})
        return trained["w"]


def not_true_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + beta tau^2 KL(not-true softmax of the received model || that of the trained one)."""
    logits, teacher = model(values["w"], batch.x), model(ctx.received, batch.x, stats="frozen")
    true = torch.arange(logits.shape[1], device=logits.device) == batch.y.unsqueeze(1)
    p, q = ((z / ctx.hp.tau - FAR * true).log_softmax(1) for z in (teacher, logits))
    divergence = torch.where(true, 0.0, p.exp() * (p - q)).sum(1)
    likelihood = logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return batch.mean(ctx.hp.beta * ctx.hp.tau**2 * divergence - likelihood)
