"""APPLE: Luo and Wu 2022 (IJCAI), "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
Algorithm 1, in which every client downloads all core models.

A client's model is `sum_j p_ij w_j` over all clients' core models. The client learns its own core model w_i and the
vector p_i. In the first rounds a fading penalty keeps p_i near the weights of FedAvg.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of APPLE.

    Attributes:
        mu: weight of the penalty mu/2 ||p - p0||^2 in the first round.
        fade: rounds over which it falls to 0, as half a cosine (L in the paper).
        p_lr: learning rate of p; None: the cell's learning rate.
    """

    mu: float = hp(0.1, ge=0, search=Range(1e-3, 1, log=True))
    fade: int = hp(10, ge=0, static=True)
    p_lr: float | None = hp(None, ge=0, static=True)


@METHODS.register("apple")
class APPLE(Method):
    """Every client learns how to mix the core models of all clients, and trains its own core model in the mixture."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state["cores"] = w.weights.repeat(len(server.sizes), 1)
        server.state["shares"] = {}

    def init_client(self, server: Server, client: Client) -> None:
        w = client.state["core"] = server.initial_model()
        sizes = [n for _, n in sorted(server.sizes.items())]
        client.state["p"] = client.state["p0"] = torch.tensor(sizes).to(w.weights) / sum(sizes)

    def broadcast(self, server: Server, client: Client) -> State:
        ids = sorted(server.sizes)
        fading = (1 + math.cos(math.pi * min(1, server.round / self.hp.fade))) / 2 if self.hp.fade else 0.0
        own = ids.index(client.id) if client.id in ids else None
        return {"cores": server.state["cores"], "own": own, "fading": fading}

    def client_round(self, client: Client, down: State) -> Program:
        core, cores = client.state["core"], down["cores"]
        mine = torch.zeros_like(client.state["p"])
        mine[down["own"]] = 1
        trained = yield Train(
            {"core": core, "p": client.state["p"]},
            loss=mixture_loss,
            optimizer={"core": SGD(), "p": SGD(lr=self.hp.p_lr, momentum=0.0, weight_decay=0.0)},
            context={
                "others": cores * (1 - mine).unsqueeze(1),
                "mine": mine,
                "p0": client.state["p0"],
                "fading": cores.new_tensor(down["fading"]),
            },
        )
        client.state["core"], client.state["p"] = trained["core"], trained["p"]
        yield Upload({"weights": trained["core"].weights, "p": trained["p"]})
        return self.personal_model(client, cores, down["own"])

    def personal_model(self, client: Client, cores: Tensor, own: int | None) -> Params:
        """sum_j p_j w_j with the latest version of the client's own core model, whose running statistics it has."""
        core, p = client.state["core"], client.state["p"]
        if own is None:
            return core.with_weights(p @ cores)
        return core.with_weights(p @ cores + p[own] * (core.weights - cores[own]))

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        ids, cores = sorted(server.sizes), server.state["cores"].clone()
        for m in messages:
            cores[ids.index(m.client)] = m["weights"]
        server.state["cores"] = cores
        server.state["shares"] = server.state["shares"] | {m.client: m["p"] for m in messages}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return self.personal_model(client, down["cores"], down["own"])

    def relations(self, server: Server) -> dict[str, Tensor]:
        """Row i is p_i; empty until all clients have uploaded."""
        shares = server.state["shares"]
        return {"p": torch.stack([shares[i] for i in sorted(shares)])} if shares.keys() == server.sizes.keys() else {}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the mean of all core models."""
        start = self.personal_model(client, down["cores"], None)
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def mixture_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of sum_j p_j w_j + fading mu/2 ||p - p0||^2; only the client's own core model is trained."""
    core, p = values["core"], values["p"]
    mixed = core.with_weights(p @ ctx.others + (p @ ctx.mine) * core.weights)
    away = p - ctx.p0
    return cross_entropy(model, {"w": mixed}, batch, ctx) + ctx.fading * ctx.hp.mu / 2 * (away @ away)
