"""FedCAC: Wu, Liu, Niu, Zhu and Tang 2023 (ICCV), "Bold but Cautious: Unlocking the Potential of Personalized Federated
Learning through Cautiously Aggressive Collaboration".

The parameters with the largest |(w - w_start) w| in local training are critical. A client starts from the mean of all
models, except in its critical parameters: there it takes the mean over clients whose critical parameters overlap enough
with its own. The required overlap grows, until after `beta` rounds only the client itself is left.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp,
    mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedCAC.

    Attributes:
        tau: share of critical parameters in each tensor.
        beta: rounds after which clients no longer share critical parameters.
    """

    tau: float = hp(0.5, ge=0, le=1, static=True, search=(0.1, 0.3, 0.5, 0.7))
    beta: int = hp(100, ge=0, static=True, search=(10, 50, 100, 200))

    def degenerate(self) -> list[str]:
        found = ["tau = 0: all clients of FedCAC start where those of FedAvg do"] if self.tau == 0 else []
        alone = self.tau == 1 and self.beta == 0
        return found + (["tau = 1 with beta = 0: the models of FedCAC are those of Local"] if alone else [])


@METHODS.register("fedcac")
class FedCAC(Method):
    """Clients share critical parameters with clients whose critical ones overlap, all others with all clients."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state |= {"model": server.initial_model(), "models": {}, "masks": {}, "overlap": {}}

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        """The mean of all models and, once the client has uploaded, the mean of its collaborators' models."""
        models, overlap = server.state["models"], server.state["overlap"]
        down = {"model": server.state["model"]}
        if client.id in models:
            mates = [j for j in models if j == client.id or overlap[client.id][j] >= overlap["threshold"]]
            down["customized"] = torch.stack([models[j].weights for j in mates]).mean(0)
        return down

    def client_round(self, client: Client, down: State) -> Program:
        start = down["model"]
        if "customized" in down:
            start = start.with_weights(torch.where(client.state["mask"] > 0, down["customized"], start.weights))
        trained = yield Train({"w": start}, loss=cross_entropy)
        w = client.state["personal"] = trained["w"]
        client.state["mask"] = critical(start, w, self.hp.tau)
        yield Upload({"model": w, "mask": client.state["mask"]})
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        state["model"] = mean(messages, "model")
        state["models"] = state["models"] | {m.client: m["model"] for m in messages}
        masks = state["masks"] = state["masks"] | {m.client: m["mask"] for m in messages}
        state["overlap"] = self._overlap(masks, server.round + 1)

    def _overlap(self, masks: dict[int, Tensor], round: int) -> dict[Any, Any]:
        """Share of critical parameters that each two clients have in common, and the smallest one to collaborate."""
        found: dict[Any, Any] = {i: {j: shared(a, b) for j, b in masks.items()} for i, a in masks.items()}
        pairs = [found[i][j] for i in masks for j in masks if i != j]
        if round >= self.hp.beta or not pairs:
            return found | {"threshold": float("inf")}
        average = sum(pairs) / len(pairs)
        threshold = average + round / self.hp.beta * (max(pairs) - average)
        return found | {"threshold": threshold - 1e-9}  # so that rounding does not separate equal overlaps

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the mean of all models."""
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def critical(start: Params, w: Params, tau: float) -> Tensor:
    """1 where a parameter is critical, `[d]`: in each tensor the share tau with the largest |(w - start) w|.

    Ties go to the first entries. Values at the level of rounding errors, relative to the largest, count as 0.
    """
    sensitivity = ((w.weights - start.weights) * w.weights).abs()
    noise = 100 * torch.finfo(sensitivity.dtype).eps * sensitivity.max()  # for instance of a bias before BatchNorm
    sensitivity = torch.where(sensitivity > noise, sensitivity, 0.0)
    masks = []
    for part in torch.split(sensitivity, [e.size for e in w.spec.params]):
        chosen = torch.zeros_like(part, dtype=torch.uint8)
        chosen[part.argsort(descending=True, stable=True)[: int(tau * len(part))]] = 1
        masks.append(chosen)
    return torch.cat(masks)


def shared(a: Tensor, b: Tensor) -> float:
    """1 - |a - b|_1 / (2 n) for masks of n critical parameters each."""
    return 1 - int((a != b).sum()) / max(1, 2 * int(a.sum()))
