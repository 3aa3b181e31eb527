"""FedCross: Hu, Yue, Xie, Chen, Wang, Wei, Lian and Chen 2024 (ICDE), "FedCross: Towards Accurate Federated Learning
via Multi-Model Cross-Aggregation", Algorithm 1.

No common model is trained. Instead there are as many models as clients in a round, and each is trained by another
client in every round. After a round each model is mixed with a small share of another one, its collaborator. The mean
of the models is the generic model.
"""

from typing import Literal

import torch

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp,
    mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedCross.

    Attributes:
        alpha: share of the model itself in the mixture; the rest is the collaborator's.
        collaborator: the model with the `lowest` or `highest` cosine, or the others in turn (`in_order`).
    """

    alpha: float = hp(0.99, ge=0.5, le=1, static=True, search=(0.5, 0.8, 0.9, 0.95, 0.99))
    collaborator: Literal["lowest", "highest", "in_order"] = hp("lowest", static=True)


@METHODS.register("fedcross")
class FedCross(Method):
    """Several models, each trained by other clients in every round and mixed with a small share of another model."""

    Hyper = Hyper
    symmetric = False  # the models are assigned to clients at random

    def init(self, server: Server) -> None:
        server.state |= {"model": server.initial_model(), "models": []}

    def broadcast(self, server: Server, client: Client) -> State:
        """One of the models; each goes to one of the round's clients."""
        if client.id not in server.selected:
            return {"model": server.state["model"], "number": 0}
        dealt = server.rng("deal").permutation(len(server.selected))
        number = int(dealt[server.selected.index(client.id)])
        models = server.state["models"]
        return {"model": models[number] if number < len(models) else server.initial_model(), "number": number}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        models: list[Params] = list(server.state["models"]) or [server.initial_model()] * len(messages)
        for m in messages:
            models[m.base["number"]] = m["model"]
        partners = self.partners(torch.stack([w.weights for w in models]), server.round)
        models = [blend(w, models[j], self.hp.alpha) for w, j in zip(models, partners, strict=True)]
        server.state["models"] = models
        server.state["model"] = mean([Message(k, {"model": w}, 1.0, 0) for k, w in enumerate(models)], "model")

    def partners(self, weights: torch.Tensor, round: int) -> list[int]:
        """The collaborator of each model; a single model is its own."""
        k = len(weights)
        if k == 1:
            return [0]
        if self.hp.collaborator == "in_order":
            return [(i + round % (k - 1) + 1) % k for i in range(k)]
        unit = torch.nn.functional.normalize(weights, dim=1)
        sign = 1 if self.hp.collaborator == "highest" else -1
        found: list[int] = (sign * unit @ unit.T).fill_diagonal_(-2.0).argmax(1).tolist()
        return found


def blend(w: Params, other: Params, alpha: float) -> Params:
    """alpha w + (1 - alpha) other, for weights and running statistics."""
    return Params(
        alpha * w.weights + (1 - alpha) * other.weights, alpha * w.buffers + (1 - alpha) * other.buffers, w.spec
    )
