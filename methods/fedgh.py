"""FedGH: Yi, Wang, Liu, Shi and Yu 2023 (ACM MM), "FedGH: Heterogeneous Federated Learning with Generalized Global
Header", Algorithm 1.

Clients upload the class means of their features. The server trains one shared head on them, which clients receive.
Clients may have bodies of different architectures if their features have the same width.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, ClassStats, Client, Feed, Hyperparameters, Message, Method, Params, Program, Server, State,
    Train, Upload, Values, hp, join, cross_entropy,
)  # fmt: skip
from methods.prototypes import require_width


class Hyper(Hyperparameters):
    """`server_lr`: learning rate of the head on the server; None: the cell's learning rate."""

    server_lr: float | None = hp(None, ge=0, static=True)

    def degenerate(self) -> list[str]:
        return ["server_lr = 0: in FedGH every round begins with the initial head"] if self.server_lr == 0 else []


@METHODS.register("fedgh")
class FedGH(Method):
    """Own bodies and one shared head, which the server trains on the clients' class means."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True
    symmetric = False  # the server trains on one class mean after the other, in the order of clients

    def init(self, server: Server) -> None:
        server.state["head"] = server.initial_model().part("head")

    def init_client(self, server: Server, client: Client) -> None:
        """Raises ValueError if the client's features do not have the width of the head's input."""
        w = server.initial_model(client.id)
        require_width("FedGH", w, server)
        client.state["body"] = w.without("head")

    def broadcast(self, server: Server, client: Client) -> State:
        return {"head": server.state["head"]}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": join(client.state["body"], down["head"])}, loss=cross_entropy)
        client.state["body"] = trained["w"].without("head")
        stats = yield ClassStats(trained["w"], of="features")
        yield Upload({"means": stats.mean, "count": stats.count})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        there = torch.stack([m["count"] for m in messages]).nonzero()
        trained = yield Train(
            {"head": server.state["head"]},
            loss=pair_loss,
            steps=len(there),
            feed=Feed("none", 1),
            optimizer=SGD(lr=self.hp.server_lr),
            context={"means": torch.stack([m["means"] for m in messages])[there[:, 0], there[:, 1]], "y": there[:, 1]},
        )
        server.state["head"] = trained["head"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(client.state["body"], down["head"])


def pair_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the head on one class mean, the one with the number of the step."""
    at = batch.step.view(1)
    logits = model.head(values["head"], ctx.means.index_select(0, at))
    return -logits.log_softmax(1).gather(1, ctx.y.index_select(0, at).unsqueeze(1)).sum()
