"""Ditto: Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization", Algorithm 1."""

from typing import Any

from bench.method import (
    METHODS, SGD, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    cross_entropy, hp,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of Ditto; the paper tries lambda in {0.1, 1, 2}."""

    lam: float = hp(1.0, ge=0, search=Range(0.01, 10, log=True))
    personal_epochs: int | None = hp(None, ge=0, static=True)
    personal_lr: float | None = hp(None, gt=0, static=True)

    def degenerate(self) -> list[str]:
        return ["lam = 0: the personalized models of Ditto are those of Local"] if self.lam == 0 else []


@METHODS.register("ditto")
class Ditto(Method):
    """FedAvg, and in addition a personalized model per client that is pulled towards the received generic model."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        generic = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": generic["w"]})
        yield from self.unselected_round(client, down)
        return generic["w"]

    def unselected_round(self, client: Client, down: State) -> Program:
        personal = yield Train(
            {"w": client.state["personal"]},
            loss=proximal_loss,
            context={"center": down["model"].weights},
            epochs=self.hp.personal_epochs,
            optimizer=SGD(lr=self.hp.personal_lr),
        )
        client.state["personal"] = personal["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def proximal_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + lam/2 ||v - w||^2, whose gradient is that of Algorithm 1, line 7."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.lam * proximal(values["w"], ctx.center)
