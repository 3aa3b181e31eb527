"""FLoRA: Wang, Shen, He, Sun, Wang, Lyu and Li 2024 (NeurIPS), "FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations".

Clients have LoRA's matrices of different ranks and draw them anew in every round. The server stacks them, so that the
product of the stacks is the mean of the clients' products; server and clients add it to the weights of the layers.
"""

import math

import numpy as np
import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp,
    join, mean,
)  # fmt: skip
from methods.lora import cut, layers_of, rank_of, replaced, scale


class Hyper(Hyperparameters):
    """Hyperparameters of FLoRA.

    Attributes:
        ranks: ranks of the clients, in turn, at most the cell's; empty: the cell's rank for all.
    """

    ranks: tuple[int, ...] = hp((), static=True)


@METHODS.register("flora")
class FLoRA(Method):
    """LoRA with ranks by client, whose matrices are stacked, merged into the layers' weights, and drawn anew."""

    Hyper = Hyper
    adapter = "lora"
    moves_base = True
    symmetric = False  # clients draw their matrices

    def init(self, server: Server) -> None:
        server.state |= {"model": server.initial_model(), "stack": {}, "holders": []}
        limit = rank_of(server.state["model"])
        if not all(1 <= rank <= limit for rank in self.hp.ranks):
            raise ValueError(f"FLoRA's ranks {self.hp.ranks} should be from 1 to the cell's rank {limit}")

    def broadcast(self, server: Server, client: Client) -> State:
        """The stack for a client that has the weights to add its product to, and the new weights for any other."""
        w = server.state["model"]
        layers = {"stack": server.state["stack"]} if client.id in server.state["holders"] else {"base": base(w)}
        rank = self.hp.ranks[client.id % len(self.hp.ranks)] if self.hp.ranks else rank_of(w)
        return {"rest": rest(w), "rank": rank, "seed": int(server.rng("flora").integers(2**63)), **layers}

    def client_round(self, client: Client, down: State) -> Program:
        w = yield from self.trained(client, down)
        client.state["base"] = base(w)
        yield Upload(cut(w, down["rank"]) | {"rest": rest(w)})
        return w

    def trained(self, client: Client, down: State, epochs: int | None = None) -> Program:
        """The received model after local training of all but the layers' own weights."""
        weights = down["base"] if "base" in down else merged(client.state["base"], down["stack"])
        matrices = fresh(weights, down["rank"], np.random.default_rng([down["seed"], client.id]))
        moving = tuple(e.name for part in (matrices, down["rest"]) for e in part.spec.params)
        w = join(weights, matrices, down["rest"])
        trained = yield Train({"w": w}, loss=cross_entropy, only={"w": moving}, epochs=epochs)
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        """Stack the rows of p_i A_i and the columns of B_i, where p_i is the client's share of the samples."""
        old, others = server.state["model"], mean(messages, "rest")
        total, layers = sum(m.weight for m in messages), range(len(layers_of(old)))
        stack = {
            "a": [torch.cat([m.weight / total * m["a"][k] for m in messages]) for k in layers],
            "b": [torch.cat([m["b"][k] for m in messages], 1) for k in layers],
        }
        matrices = old.part(*old.spec.named("lora_a", "lora_b"))  # B is zero
        server.state |= {
            "model": join(merged(base(old), stack), matrices, others),
            "stack": stack,
            "holders": [m.client for m in messages if m.staleness == 0],
        }

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        return (yield from self.trained(client, down, epochs))


def base(w: Params) -> Params:
    """The weights that the products are added to."""
    return w.part(*(f"{layer}.weight" for layer in layers_of(w)))


def rest(w: Params) -> Params:
    """The model without those weights and without LoRA's matrices."""
    return w.without(*(f"{layer}.weight" for layer in layers_of(w)), *w.spec.named("lora_a", "lora_b"))


def merged(weights: Params, stack: dict[str, list[Tensor]]) -> Params:
    """W + alpha / rank B A of the stacked matrices."""
    new, old = {}, weights.tensors()
    for layer, a, b in zip(layers_of(weights), stack["a"], stack["b"], strict=True):
        w = old[f"{layer}.weight"]
        new[f"{layer}.weight"] = w + scale(weights, layer) * (b @ a.flatten(1)).view_as(w)
    return replaced(weights, new)


def fresh(weights: Params, rank: int, rng: np.random.Generator) -> Params:
    """LoRA's matrices as they begin: B zero, and A uniform in its first rows; rows beyond the rank stay zero."""
    spec = (weights.spec.whole or weights.spec).part(weights.spec.named("lora_a", "lora_b"))
    pieces = []
    for entry in spec.params:
        start = weights.weights.new_zeros(entry.shape)
        if entry.name.endswith("lora_a"):
            bound = math.prod(entry.shape[1:]) ** -0.5
            start[:rank] = torch.as_tensor(rng.uniform(-bound, bound, (rank, *entry.shape[1:]))).to(start)
        pieces.append(start.flatten())
    return Params(torch.cat(pieces), weights.buffers[:0], spec)
