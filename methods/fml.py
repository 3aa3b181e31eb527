"""FML: Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu 2020, "Federated Mutual Learning", Algorithm 1.

Every client trains its own model together with a copy of the shared "meme" model; each is also a teacher of the other.
Only the meme, with the cell's architecture, is exchanged, so clients may have models of different architectures.
"""

from typing import Any

from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, Values, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FML.

    Attributes:
        alpha: weight of the labels for the own model; the rest is the weight of the meme's predictions.
        beta: weight of the labels for the meme; the rest is the weight of the own model's predictions.
    """

    alpha: float = hp(0.5, ge=0, le=1, search=(0.1, 0.5, 0.9))
    beta: float = hp(0.5, ge=0, le=1, search=(0.1, 0.5, 0.9))

    def degenerate(self) -> list[str]:
        found = ["alpha = 1: the personalized models of FML are those of Local"] if self.alpha == 1 else []
        return found + (["beta = 1: the generic model of FML is that of FedAvg"] if self.beta == 1 else [])


@METHODS.register("fml")
class FML(Method):
    """Every client's own model and a shared model teach each other."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)
    mixes_models = True

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"own": client.state["personal"], "meme": down["model"]}, loss=mutual_loss)
        client.state["personal"] = trained["own"]
        yield Upload({"model": trained["meme"]})
        return trained["own"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def mutual_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """alpha CE + (1 - alpha) KL(meme || own) of the own model, beta CE + (1 - beta) KL(own || meme) of the meme.

    The teacher's predictions are constants: each divergence trains only its second model.
    """
    own, meme = (model(values[name], batch.x).log_softmax(1) for name in ("own", "meme"))
    total: Any = 0
    for student, teacher, labels in ((own, meme.detach(), ctx.hp.alpha), (meme, own.detach(), ctx.hp.beta)):
        likelihood = student.gather(1, batch.y.unsqueeze(1)).squeeze(1)
        divergence = (teacher.exp() * (teacher - student)).sum(1)
        total = total + (1 - labels) * divergence - labels * likelihood
    return batch.mean(total)
