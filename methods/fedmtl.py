"""FedMTL: Smith, Chiang, Sanjabi and Talwalkar 2017 (NeurIPS), "Federated Multi-Task Learning": their objective, but
with SGD on networks instead of MOCHA's dual steps on linear models.

Every client has its own model w_i. The joint penalty is lam/2 tr(W^T Omega W), where Omega describes how the clients'
tasks are related: it is fixed (`laplacian`) or learned from the models.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedMTL.

    Attributes:
        lam: weight of the penalty.
        relation: `learned`, or `laplacian` of the complete graph, which pulls all models to their mean.
    """

    lam: float = hp(0.1, ge=0, search=Range(1e-3, 1, log=True))
    relation: Literal["learned", "laplacian"] = hp("learned", static=True)

    def degenerate(self) -> list[str]:
        return ["lam = 0: the personalized models of FedMTL are those of Local"] if self.lam == 0 else []


@METHODS.register("fedmtl")
class FedMTL(Method):
    """Own models with a penalty on their differences, weighted by how the clients' tasks are related."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state["models"] = server.initial_model().weights.repeat(len(server.sizes), 1)
        self._relate(server)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        """The sum of the other models, weighted by Omega; for a new client the mean of all models."""
        ids, models = sorted(server.sizes), server.state["models"]
        if client.id not in ids:
            return {"mean": models.mean(0)}
        row = server.state["omega"][ids.index(client.id)]
        own = row[ids.index(client.id)]
        return {"others": row @ models - own * models[ids.index(client.id)], "own": float(own)}

    def client_round(self, client: Client, down: State) -> Program:
        w = client.state["personal"]
        context = {"others": down["others"], "own": w.weights.new_tensor(down["own"])}
        trained = yield Train({"w": w}, loss=related_loss, context=context)
        client.state["personal"] = trained["w"]
        yield Upload({"weights": trained["w"].weights})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        ids, models = sorted(server.sizes), server.state["models"].clone()
        for m in messages:
            models[ids.index(m.client)] = m["weights"]
        server.state["models"] = models
        self._relate(server)

    def _relate(self, server: Server) -> None:
        models = server.state["models"]
        laplacian = torch.eye(len(models)).to(models) - 1 / len(models)
        server.state["omega"] = precision(models).to(models) if self.hp.relation == "learned" else laplacian

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """Omega: the more negative an entry is, the more two models attract each other."""
        return {"omega": server.state["omega"]}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the mean of all models."""
        start = client.state["personal"].with_weights(down["mean"])
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def precision(models: Tensor) -> Tensor:
    """(Sigma + I/N)^-1 / N with Sigma = (W W^T)^(1/2) / tr: eigenvalues in [1/(N + 1), 1], `[clients, clients]`.

    It is smallest in the direction that all models have in common, and 1 in directions in which no two models differ.
    """
    # Of W itself: the roots of W W^T's eigenvalues would turn rounding of 1e-16 where clients share a model into 1e-8.
    directions, roots, _ = torch.linalg.svd(models.double(), full_matrices=False)
    share = roots / roots.sum().clamp(min=torch.finfo(roots.dtype).tiny)
    identity = torch.eye(len(models), dtype=roots.dtype, device=roots.device)
    return identity + (directions * (1 / (len(models) * share + 1) - 1)) @ directions.T


def related_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam (Omega_ii/2 ||w_i||^2 + <w_i, sum_j Omega_ij w_j>), j != i: the penalty up to a constant."""
    w = values["w"].weights
    return cross_entropy(model, values, batch, ctx) + ctx.hp.lam * (ctx.own / 2 * (w @ w) + w @ ctx.others)
