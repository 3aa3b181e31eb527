"""pFedSim: Tan, Zhou, Liu, Wang and Yu 2023, "pFedSim: Similarity-Aware Model Aggregation Towards Personalized
Federated Learning".

After some rounds of FedAvg every client keeps its own head, and starts from its own weighted mean of all bodies. The
more similar two clients' heads are, the larger is the weight of one client's body in the other's mean.
"""

import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp,
    join, mean,
)  # fmt: skip

NEAREST = 1e-6  # smallest distance 1 - cos, as identical heads would otherwise have all the weight


class Hyper(Hyperparameters):
    """Hyperparameters of pFedSim.

    Attributes:
        warmup: rounds of FedAvg (the paper's rho, a share of all rounds).
    """

    warmup: int = hp(10, ge=0, static=True, search=(5, 10, 50, 100))


@METHODS.register("pfedsim")
class PFedSim(Method):
    """FedAvg at first, then own heads; the similarity of the heads gives each client's own mixture of bodies."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state |= {"model": server.initial_model(), "models": {}, "bodies": {}}

    def broadcast(self, server: Server, client: Client) -> State:
        """The client's own mean of bodies if its head is known, else FedAvg's model."""
        if client.id in server.state["bodies"]:
            return {"body": server.state["bodies"][client.id]}
        return {"model": server.state["model"], "warm": server.round >= self.hp.warmup}

    def client_round(self, client: Client, down: State) -> Program:
        start = join(down["body"], client.state["personal"].part("head")) if "body" in down else down["model"]
        trained = yield Train({"w": start}, loss=cross_entropy)
        if "body" in down or down["warm"]:
            client.state["personal"] = trained["w"]
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        if server.round < self.hp.warmup:
            server.state["model"] = mean(messages, "model")
            return
        models = server.state["models"] | {m.client: m["model"] for m in messages}
        bodies = [w.without("head") for w in models.values()]
        weights, buffers = torch.stack([b.weights for b in bodies]), torch.stack([b.buffers for b in bodies])
        shares = similarities(torch.stack([w.part("head").weights for w in models.values()]))
        server.state["models"] = models
        server.state["bodies"] = {
            i: Params(a @ weights, a @ buffers, bodies[0].spec) for i, a in zip(models, shares, strict=True)
        }

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"] if "body" in down else down["model"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The shares of all bodies in each client's; empty until all clients have uploaded since the warm-up."""
        models = server.state["models"]
        if models.keys() != server.sizes.keys():
            return {}
        return {"similarity": similarities(torch.stack([models[i].part("head").weights for i in sorted(models)]))}


def similarities(heads: Tensor) -> Tensor:
    """-log(1 - cos) of heads `[clients, d]`, at least 0 and 1 on the diagonal, with rows divided by their sums."""
    unit = heads / heads.norm(dim=1, keepdim=True).clamp(min=torch.finfo(heads.dtype).tiny)
    phi = -(1 - unit @ unit.T).clamp(min=NEAREST).log()
    phi = phi.clamp(min=0).fill_diagonal_(1)
    return phi / phi.sum(1, keepdim=True)
