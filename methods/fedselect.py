"""FedSelect: Tamirisa, Xie, Bao, Zhou, Arel and Shamsian 2024 (CVPR), "FedSelect: Personalized Federated Learning with
Customized Selection of Parameters for Fine-Tuning", Algorithm 1.

Every client has a growing mask of own parameters. At intervals the shared parameters that its training has changed most
since the last growth are added. Own and shared parameters are trained in turn. A shared parameter is averaged over the
clients that share it.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Do, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload,
    Values, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedSelect.

    Attributes:
        rate: share of a tensor's shared parameters that become own when the mask grows.
        limit: share of own parameters above which a tensor's mask does not grow.
        every: number of the client's rounds between two growths.
    """

    rate: float = hp(0.25, ge=0, le=1, static=True, search=(0.05, 0.1, 0.25, 0.5))
    limit: float = hp(0.8, ge=0, le=1, static=True, search=(0.05, 0.3, 0.5, 0.8))
    every: int = hp(3, ge=1, static=True, search=(1, 3, 5))

    def degenerate(self) -> list[str]:
        return ["rate = 0: FedSelect is FedAvg with equal weights"] if self.rate == 0 else []


@METHODS.register("fedselect")
class FedSelect(Method):
    """FedAvg in which each client gradually turns the parameters that its training changes most into own ones."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        none = torch.zeros_like(w.weights, dtype=torch.uint8)
        client.state |= {"personal": w, "before": w.weights, "mask": none, "kept": none, "rounds": 0}

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"]}

    def client_round(self, client: Client, down: State) -> Program:
        state, received = client.state, down["model"]
        mask = state["mask"]
        w = received.with_weights(torch.where(state["kept"] > 0, state["personal"].weights, received.weights))
        if mask.any():
            w = (yield Train({"w": w}, step=masked_step, context={"moves": mask}))["w"]
        w = (yield Train({"w": w}, step=masked_step, context={"moves": 1 - mask}))["w"]
        yield Upload({"model": w, "mask": mask})
        state |= {"personal": w, "kept": mask, "rounds": state["rounds"] + 1}
        if state["rounds"] > 1 and (state["rounds"] - 1) % self.hp.every == 0:
            state["mask"] = grown(mask, w, (w.weights - state["before"]).abs(), self.hp.rate, self.hp.limit)
            state["before"] = w.weights
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        """Average each parameter over the clients that share it, unweighted; if none does, it stays unchanged."""
        old = server.state["model"]
        weights = torch.stack([m["model"].weights for m in messages])
        shared = 1 - torch.stack([m["mask"] for m in messages]).to(weights)
        count = shared.sum(0)
        average = torch.where(count > 0, (weights * shared).sum(0) / count.clamp(min=1), old.weights)
        buffers = torch.stack([m["model"].buffers for m in messages]).mean(0)
        server.state["model"] = Params(average, buffers, old.spec)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the shared model."""
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def grown(mask: Tensor, w: Params, moved: Tensor, rate: float, limit: float) -> Tensor:
    """The mask, extended in each weight tensor by the share `rate` of the other entries that moved most.

    Ties go to the first entries; what the mean of equal numbers rounds to is no move.
    """
    masks = []
    sizes = [e.size for e in w.spec.params]
    moved = torch.where(moved > 8 * torch.finfo(moved.dtype).eps * w.weights.abs(), moved, 0.0)
    for entry, part, by in zip(w.spec.params, torch.split(mask, sizes), torch.split(moved, sizes), strict=True):
        new, free = part.clone(), int((part == 0).sum())
        if entry.name.endswith("weight") and (entry.size - free) / entry.size <= limit:
            order = torch.where(part > 0, -1.0, by).argsort(descending=True, stable=True)
            new[order[: free - round((1 - rate) * free)]] = 1
        masks.append(new)
    return torch.cat(masks)


def masked_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """An ordinary step, applied only to the parameters marked in `ctx.moves`."""
    gradients, values = do.gradient(cross_entropy, values, batch, ctx)
    new = do.update(values, gradients)["w"]
    return {"w": new.with_weights(torch.where(ctx.moves > 0, new.weights, values["w"].weights))}
