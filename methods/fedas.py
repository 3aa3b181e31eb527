"""FedAS: Yang, Huang and Ye 2024 (CVPR), "FedAS: Bridging Inconsistency in Personalized Federated Learning".

Before training, a client aligns the received body with its own last body: features are pulled to the class means of the
last body, so that the client's head still fits. The server weights bodies by the trace of the Fisher information.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, ClassStats, Client, Do, Feed, Hyperparameters, Method, Params, Program, Range, Server, State,
    Train, Upload, Values, cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedAS.

    Attributes:
        align_epochs, align_lr: epochs and learning rate of the alignment.
        fisher: weight bodies by the trace of the Fisher information; otherwise by training samples.
    """

    align_epochs: int = hp(1, ge=0, static=True)
    align_lr: float = hp(0.01, ge=0, static=True, search=Range(1e-3, 0.1, log=True))
    fisher: bool = hp(True, static=True)

    def degenerate(self) -> list[str]:
        plain = not self.fisher and 0 in (self.align_epochs, self.align_lr)
        return ["without alignment and Fisher weights FedAS is FedPer"] if plain else []


@METHODS.register("fedas")
class FedAS(Method):
    """FedPer whose clients first align the received body with their own last one; bodies have Fisher weights."""

    Hyper = Hyper
    symmetric = False  # the trace is a sum over batches
    trains = "pm"
    mean_of = ("body",)

    def init(self, server: Server) -> None:
        server.state["body"] = server.initial_model().without("head")

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        own = client.state["personal"]
        before = yield ClassStats(own, of="features")
        aligned = yield Train(
            {"w": join(down["body"], own.part("head"))},
            loss=alignment_loss,
            epochs=self.hp.align_epochs,
            feed=Feed(stream=1),
            only={"w": tuple(down["body"].tensors())},
            optimizer=SGD(lr=self.hp.align_lr, momentum=0.0, weight_decay=0.0, nesterov=False),
            context={"prototypes": before.mean},
        )
        trained = yield Train({"w": aligned["w"]}, loss=cross_entropy)
        w = client.state["personal"] = trained["w"]
        yield Upload({"body": w.without("head")}, weight=(yield from self.information(w)) if self.hp.fisher else None)
        return w

    def information(self, w: Params) -> Program:
        """Sum over batches of the squared norm of the loss's gradient."""
        answer = yield Train(
            {"w": w, "trace": w.weights.new_full((1,), torch.finfo(w.weights.dtype).tiny)},
            step=add_squares,
            epochs=1,
            feed=Feed(order="cyclic", augment=False),
            optimizer={"w": SGD(lr=0.0)},
            stats="frozen",
        )
        return float(answer["trace"])

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client fine-tunes the common body under the initial head."""
        start = join(down["body"], client.state["personal"].part("head"))
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def alignment_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Sum over the batch's classes of the mean squared distance of their features to the client's class prototype."""
    z = model.features(values["w"], batch.x)
    distance = (z - ctx.prototypes[batch.y]).square().mean(1)
    alike = (batch.y.unsqueeze(1) == batch.y).to(z.dtype) @ batch.weight
    return (batch.weight * distance / alike.clamp(min=1)).sum()


def add_squares(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """Add the squared norm of the batch's gradient to the trace; nothing is trained."""
    gradients, values = do.gradient(cross_entropy, values, batch, ctx)
    return values | {"trace": values["trace"] + gradients["w"].square().sum()}
