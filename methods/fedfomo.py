"""FedFomo: Zhang, Sapra, Fidler, Yeung and Alvarez 2021 (ICLR), "Personalized Federated Learning with First Order Model
Optimization".

A client weights models by their gain on its hold-out split per unit of distance, and moves towards the helpful ones
before it trains. The server relays the uploads of the last round. Gain and distance are measured from the client's
model before its last local training, so its own trained model is a candidate as well. As the client already has that
model, the server does not send it and it does not count towards the M models.
"""

import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Evaluate, Feed, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload,
    cross_entropy, hp,
)  # fmt: skip

REMAINDER = Feed(samples="remainder")


class Hyper(Hyperparameters):
    """Hyperparameters of FedFomo.

    Attributes:
        models: how many models a client receives (M in the paper).
        explore: probability, in round 0, of sending a random model instead of the best remaining one.
        explore_decay: decrease of that probability in every round, down to 0.
    """

    models: int = hp(5, ge=0, static=True, search=(1, 5, 10))
    explore: float = hp(0.3, ge=0, le=1)
    explore_decay: float = hp(0.05, ge=0)

    def degenerate(self) -> list[str]:
        text = "models = 0: FedFomo is Local that takes back what did not help on the hold-out split"
        return [text] if self.models == 0 else []


@METHODS.register("fedfomo")
class FedFomo(Method):
    """Every client combines the others' models, weighted by how much they help on its own hold-out split."""

    Hyper = Hyper
    symmetric = False  # the hold-out split and exploration are drawn for each client
    trains = "pm"
    holdout = 0.2

    def init(self, server: Server) -> None:
        like = server.initial_model().weights
        server.state["models"] = {}
        server.state["affinity"] = torch.eye(len(server.sizes), dtype=like.dtype, device=like.device)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["before"] = client.state["personal"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {"models": {n: server.state["models"][n] for n in self.choice(server, client.id)}}

    def choice(self, server: Server, client: int) -> list[int]:
        """The clients whose models the client receives: those of largest affinity, or random ones to explore.

        Ties are in the order of clients.
        """
        ids, others = sorted(server.sizes), [n for n in server.state["models"] if n != client]
        if client not in ids:  # a new client, which has no affinities
            return others[: self.hp.models]
        affinity = dict(zip(ids, server.state["affinity"][ids.index(client)].tolist(), strict=True))
        others.sort(key=lambda n: -affinity[n])
        epsilon = self.hp.explore - self.hp.explore_decay * server.round
        rng = server.rng(f"models for client {client}")
        chosen: list[int] = []
        while others and len(chosen) < self.hp.models:
            chosen.append(others.pop(int(rng.integers(len(others))) if rng.random() < epsilon else 0))
        return chosen

    def client_round(self, client: Client, down: State) -> Program:
        start, weights = yield from self.combination(client, down)
        trained = yield Train({"w": start}, loss=cross_entropy, feed=REMAINDER)
        client.state["before"], client.state["personal"] = start, trained["w"]
        yield Upload({"model": trained["w"], "weights": weights})

    def combination(self, client: Client, down: State) -> Program:
        """theta + sum_n w_n (theta_n - theta) with w clipped and normalised, and the raw w of the received models.

        theta is the model before the last local training; n = 0 is the model after it. If no candidate helps, the
        client returns to theta if its training increased the hold-out loss, and else keeps its trained model.
        """
        theta, own = client.state["before"], client.state["personal"]
        candidates = [own, *down["models"].values()]
        losses, _ = yield Evaluate([theta, *candidates], "holdout")
        weights_of = torch.stack([w.weights for w in candidates])
        distance = (weights_of - theta.weights).norm(dim=1)
        gain = (losses[0] - losses[1:]).to(distance)
        weights = torch.where(distance > 0, gain / distance, 0.0)
        helpful = weights.clamp(min=0)
        if not helpful.any():
            return theta if gain[0] < 0 else own, weights[1:]
        share = helpful / helpful.sum()
        # The shares sum to 1, so theta cancels. It is left out so that rounding makes no running variance negative.
        buffers = share @ torch.stack([w.buffers for w in candidates])
        return Params(share @ weights_of, buffers, own.spec), weights[1:]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        ids, affinity = sorted(server.sizes), server.state["affinity"].clone()
        for m in messages:
            affinity[ids.index(m.client), [ids.index(n) for n in m.base["models"]]] += m["weights"]
        server.state["affinity"] = affinity
        server.state["models"] = {m.client: m["model"] for m in messages}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The affinities: row i holds the sums of the weights that client i gave the others."""
        return {"affinity": server.state["affinity"]}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from its own combination of the models received, as in a round of training."""
        start, _ = yield from self.combination(client, down)
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs, feed=REMAINDER)
        return trained["w"]
