"""pFedGraph: Ye, Ni, Wu, Chen and Wang 2023 (ICML), "Personalized Federated Learning with Inferred Collaboration
Graphs".

For every client the server infers the share of each client's model in the model that it starts from. The share grows
with the cosine of both clients' updates since the common initial model, and is kept near FedAvg's share. During
training a client is pulled to the direction of the model that it received.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp, mean,
)  # fmt: skip
from methods.simplex import onto_simplex


class Hyper(Hyperparameters):
    """Hyperparameters of pFedGraph.

    Attributes:
        alpha: strength of the pull of the graph's shares to FedAvg's.
        lam: strength of a client's pull to the direction of the model that it received.
    """

    alpha: float = hp(0.8, gt=0, search=Range(0.01, 10, log=True))
    lam: float = hp(0.01, ge=0, search=Range(1e-3, 1, log=True))


@METHODS.register("pfedgraph")
class PFedGraph(Method):
    """Every client starts from its own weighted mean of all models, whose shares the server infers from the models."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state |= {"initial": w, "mean": w, "mixed": {}, "graph": torch.eye(len(server.sizes)).to(w.weights)}

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        if client.id not in server.sizes:  # a new client, whose model is unknown
            return {"model": server.state["mean"], "known": False}
        mixed = server.state["mixed"]
        return {"model": mixed.get(client.id, server.state["initial"]), "known": client.id in mixed}

    def client_round(self, client: Client, down: State) -> Program:
        start = down["model"]
        loss, context = cross_entropy, {}
        if down["known"]:
            loss, context = aligned_loss, {"direction": start.weights / start.weights.norm()}
        trained = yield Train({"w": start}, loss=loss, context=context)
        client.state["personal"] = trained["w"]
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        """Shares over the clients that uploaded: a_i minimises alpha ||a - p||^2 - sum_j a_j cos_ij."""
        weights = torch.stack([m["model"].weights for m in messages])
        buffers = torch.stack([m["model"].buffers for m in messages])
        p = weights.new_tensor([m.weight for m in messages])
        shares = onto_simplex(p / p.sum() + cosines(weights - server.state["initial"].weights) / (2 * self.hp.alpha))
        ids, graph = sorted(server.sizes), server.state["graph"].clone()
        at = torch.tensor([ids.index(m.client) for m in messages], device=graph.device)
        graph[at] = 0
        graph[at.unsqueeze(1), at] = shares
        spec = messages[0]["model"].spec
        mixed = {m.client: Params(a @ weights, a @ buffers, spec) for m, a in zip(messages, shares, strict=True)}
        server.state |= {
            "mixed": server.state["mixed"] | mixed,
            "graph": graph,
            "mean": mean(messages, "model"),
        }

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The collaboration graph: row i holds the shares in the model of client i."""
        return {"graph": server.state["graph"]}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the mean of all models of the last round."""
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def cosines(updates: Tensor) -> Tensor:
    """Cosine of each pair of rows, `[clients, clients]`; 0 for a row of zeros."""
    norm = updates.norm(dim=1, keepdim=True)
    unit = torch.where(norm > 0, updates / norm, 0.0)
    return unit @ unit.T


def aligned_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy - lam cos(w, received)."""
    w = values["w"].weights
    return cross_entropy(model, values, batch, ctx) - ctx.hp.lam * (ctx.direction @ w) / w.norm()
