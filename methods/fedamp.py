"""FedAMP: Huang, Chu, Zhou, Wang, Liu, Pei and Zhang 2021 (AAAI), "Personalized Cross-Silo Federated Learning on
Non-IID Data", Algorithm 1 with A(x) = 1 - e^(-x / sigma).

The server keeps a model w_i of every client and sends each client its own centre, u_i = (1 - sum_j xi_ij) w_i +
sum_j xi_ij w_j with xi_ij = (alpha / sigma) e^(-||w_i - w_j||^2 / sigma): the more similar two models are, the more
they attract each other. The client then minimises its loss + lambda / (2 alpha) ||w - u_i||^2.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of FedAMP.

    Attributes:
        sigma: squared distance at which the attraction has fallen to 1/e.
        share: weight of another client's model if it is identical, alpha / sigma in the paper; None: 1 / N, with which
            a client's own model has a positive weight whatever the distances.
        pull: strength of the pull to the centre, lambda / alpha in the paper.
    """

    sigma: float = hp(10.0, gt=0, search=Range(0.1, 1000, log=True))
    share: float | None = hp(None, ge=0, le=1, static=True)
    pull: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))

    def degenerate(self) -> list[str]:
        return ["pull = 0: the personalized models of FedAMP are those of Local"] if self.pull == 0 else []


@METHODS.register("fedamp")
class FedAMP(Method):
    """Every client is pulled towards its own mean of all models, in which similar models have larger weights."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state["models"] = server.initial_model().weights.repeat(len(server.sizes), 1)
        self._attract(server)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        ids, models = sorted(server.sizes), server.state["models"]
        if client.id not in ids:  # a new client, whose model the server does not know
            return {"center": models.mean(0)}
        return {"center": server.state["attention"][ids.index(client.id)] @ models}

    def client_round(self, client: Client, down: State) -> Program:
        own, context = client.state["personal"], {"center": down["center"]}
        trained = yield Train({"w": own}, loss=attracted_loss, context=context)
        client.state["personal"] = trained["w"]
        yield Upload({"weights": trained["w"].weights})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        ids, models = sorted(server.sizes), server.state["models"].clone()
        for m in messages:
            models[ids.index(m.client)] = m["weights"]
        server.state["models"] = models
        self._attract(server)

    def _attract(self, server: Server) -> None:
        """Compute the matrix of the weights xi; the diagonal holds the weights of the clients' own models."""
        models = server.state["models"]
        distance = torch.stack([(models - w).square().sum(1) for w in models])
        share = 1 / len(models) if self.hp.share is None else self.hp.share
        xi = (share * torch.exp(-distance / self.hp.sigma)).fill_diagonal_(0)
        server.state["attention"] = xi + torch.diag(1 - xi.sum(1))

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The weights xi: row i holds those of client i's centre."""
        return {"attention": server.state["attention"]}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the mean of all models."""
        start = client.state["personal"].with_weights(down["center"])
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def attracted_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + pull/2 ||w - u_i||^2."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.pull * proximal(values["w"], ctx.center)
