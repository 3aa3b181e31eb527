"""FedLC: Zhang, Li, Li, Xu, Wu, Ding and Wu 2022 (ICML), "Federated Learning with Label Distribution Skew via Logits
Calibration".

During local training each logit is lowered by tau n_c^(-1/4), where n_c is the client's number of samples of the class.
"""

from typing import Any

from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Program, Range, State, Train, Upload, Values, hp,
)  # fmt: skip

ABSENT = 1e-8  # replaces the count of a class without samples, whose margin is then 100 tau


class Hyper(Hyperparameters):
    """Hyperparameters of FedLC."""

    tau: float = hp(1.0, ge=0, search=Range(0.01, 10, log=True))

    def degenerate(self) -> list[str]:
        return ["tau = 0: FedLC is FedAvg"] if self.tau == 0 else []


@METHODS.register("fedlc")
class FedLC(Method):
    """FedAvg whose local losses give rare classes a larger margin."""

    Hyper = Hyper
    symmetric = False  # the calibration depends on absolute class counts
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        w = down["model"]
        margins = client.label_counts.to(w.weights).clamp(min=ABSENT) ** -0.25
        trained = yield Train({"w": w}, loss=calibrated_loss, context={"margins": margins})
        yield Upload({"model": trained["w"]})
        return trained["w"]


def calibrated_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of logits - tau n^(-1/4)."""
    logits = model(values["w"], batch.x) - ctx.hp.tau * ctx.margins
    return -batch.mean(logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))
