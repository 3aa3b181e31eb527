"""Floco and Floco+: Grinwald, Wiesner and Nakajima 2024 (NeurIPS), "Federated Learning over Connected Modes".

The head is a point in a simplex whose corners, the endpoints, are trained together: each batch draws a random point.
After `tau` rounds each client gets a point of its own, determined by its updates of the endpoints, and draws near it.
In Floco+ each client also has its own copy of body and endpoints, which is pulled to the received one.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Normal, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp,
)  # fmt: skip
from methods.losses import proximal
from methods.subregions import Basis, drawn_point, place
from methods.variants import variant


class Hyper(Hyperparameters):
    """Hyperparameters of Floco.

    Attributes:
        endpoints: number of corners of the simplex.
        tau: number of rounds after which clients have points of their own.
        rho: largest L1 distance from its point at which a client draws.
        personal_epochs: epochs of the own copy (0: no own copy; None: the cell's epochs).
        lam: strength of the pull of the own copy to the received one.
    """

    endpoints: int = hp(10, ge=1, static=True, search=(2, 5, 10, 20))
    tau: int = hp(10, ge=0, static=True, search=(5, 10, 50, 100))
    rho: float = hp(0.1, ge=0, search=Range(0.01, 1, log=True))
    personal_epochs: int | None = hp(0, ge=0, static=True)
    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))


@METHODS.register("floco")
class Floco(Method):
    """FedAvg of a body and a simplex of heads, in which every client has its own region."""

    Hyper = Hyper
    symmetric = False  # points are drawn for the clients
    trains = "both"
    mean_of = ("model", "others")

    def init(self, server: Server) -> None:
        """The head of the model is the first endpoint."""
        heads = [server.initial_model(draw=k).part("head").weights for k in range(1, self.hp.endpoints)]
        w = server.initial_model()
        like = w.part("head").weights
        server.state |= {"model": w, "others": torch.stack(heads) if heads else like.new_zeros(0, len(like))}
        server.state |= {"moved": {}, "points": {}, "basis": None}

    def init_client(self, server: Server, client: Client) -> None:
        client.state["own"] = None

    def broadcast(self, server: Server, client: Client) -> State:
        down = {"model": server.state["model"], "others": server.state["others"]}
        point = server.state["points"].get(client.id)
        return down if point is None else down | {"point": point}

    def client_round(self, client: Client, down: State) -> Program:
        start = {"w": down["model"], "others": down["others"]}
        request = Train(
            start,
            loss=drawn_loss,
            context={"center": center(down), "known": down["others"].new_tensor(float("point" in down))},
            draws={"point": Normal((self.hp.endpoints + 1,))},
        )
        trained = yield request
        yield Upload({"model": trained["w"], "others": trained["others"]})
        if self.hp.personal_epochs != 0:
            context = {**request.context, "w0": start["w"].weights, "others0": start["others"]}
            own = client.state["own"] or start
            mine = yield request._replace(values=own, loss=pulled_loss, context=context, epochs=self.hp.personal_epochs)
            client.state["own"] = {"w": mine["w"], "others": mine["others"]}
        return at_point(trained["w"], trained["others"], center(down))

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        Method.aggregate(self, server, messages)
        state = server.state
        known = {m.client: endpoints(m.values) - endpoints(m.base) for m in messages}
        state["moved"] = state["moved"] | {i: move.flatten() for i, move in known.items()}
        if server.round + 1 < self.hp.tau:
            return
        if state["basis"] is None:
            state["basis"] = Basis.of(list(state["moved"].values()), self.hp.endpoints).as_state()
        fresh = {i: move for i, move in state["moved"].items() if i not in state["points"]}
        points = place(Basis(**state["basis"]), list(fresh.values()))
        state |= {"points": state["points"] | dict(zip(fresh, points, strict=True)), "moved": {}}

    def generic(self, server: Server) -> Params:
        """The model at the centre of the simplex."""
        return at_point(server.state["model"], server.state["others"], center(server.state))

    def personal(self, server: Server, client: Client, down: State) -> Params:
        own = client.state["own"] or {"w": down["model"], "others": down["others"]}
        return at_point(own["w"], own["others"], center(down))


class FlocoPlusHyper(Hyper):
    """Floco in which every client has its own copy of the simplex, pulled to the received one."""

    personal_epochs: int | None = hp(None, ge=0, static=True)


variant("floco_plus", Floco, FlocoPlusHyper)


def center(values: State) -> Tensor:
    """The client's point, or the centre of the simplex if it has none, `[endpoints]`."""
    others = values["others"]
    middle = others.new_full((len(others) + 1,), 1 / (len(others) + 1))
    return values.get("point", middle)


def endpoints(values: Any) -> Tensor:
    """All heads, `[endpoints, d]`."""
    return torch.cat([values["model"].part("head").weights.unsqueeze(0), values["others"]])


def at_point(w: Params, others: Tensor, point: Tensor) -> Params:
    """The body of `w` with the head at a point of the simplex."""
    head = point @ torch.cat([w.part("head").weights.unsqueeze(0), others])
    pieces, at, used = [], 0, 0
    for run in w.spec.slices(("head",)):
        size = run.stop - run.start
        pieces += [w.weights[at : run.start], head[used : used + size]]
        at, used = run.stop, used + size
    return w.with_weights(torch.cat([*pieces, w.weights[at:]]))


def drawn_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy at one point for the whole batch."""
    point = drawn_point(batch.draws["point"][0], ctx.center, ctx.known, ctx.hp.rho)
    return cross_entropy(model, {"w": at_point(values["w"], values["others"], point)}, batch, ctx)


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """`drawn_loss` + lam/2 times the squared distance of body and endpoints from those received."""
    away = values["others"] - ctx.others0
    pull = proximal(values["w"], ctx.w0) + away.square().sum() / 2
    return drawn_loss(model, values, batch, ctx) + ctx.hp.lam * pull
