"""FedRep: Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning", Algorithm 1."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, Values,
    cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedRep; `body_epochs` None: the cell's epochs (or steps)."""

    head_epochs: int = hp(10, ge=0, static=True, search=(1, 5, 10))
    body_epochs: int | None = hp(None, ge=0, static=True)

    def degenerate(self) -> list[str]:
        found = ["head_epochs = 0: the heads of FedRep keep their initial weights"] if self.head_epochs == 0 else []
        return found + (["body_epochs = 0: the body of FedRep never moves"] if self.body_epochs == 0 else [])


@METHODS.register("fedrep")
class FedRep(Method):
    """A shared body and own heads: each client trains its head on the frozen body, then the body with a frozen head."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("body",)

    def init(self, server: Server) -> None:
        server.state["body"] = server.initial_model().without("head")

    def init_client(self, server: Server, client: Client) -> None:
        client.state["head"] = server.initial_model().part("head")

    def client_round(self, client: Client, down: State) -> Program:
        w = yield from train_head(join(down["body"], client.state["head"]), self.hp.head_epochs)
        client.state["head"] = w.part("head")
        trained = yield Train(
            {"w": w}, loss=cross_entropy, epochs=self.hp.body_epochs, only={"w": tuple(down["body"].tensors())}
        )
        yield Upload({"body": trained["w"].without("head")})

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["body"], client.state["head"])

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        return (yield from train_head(join(down["body"], client.state["head"]), epochs))


def train_head(w: Params, epochs: int) -> Program:
    """Train only the head."""
    trained = yield Train({"w": w}, loss=head_loss, epochs=epochs, only={"w": ("head",)})
    return trained["w"]


def head_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy with frozen running statistics of the body."""
    logits = model.head(values["w"], model.features(values["w"], batch.x, stats="frozen"))
    return batch.mean(functional.cross_entropy(logits, batch.y, reduction="none"))
