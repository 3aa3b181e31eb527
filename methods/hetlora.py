"""HetLoRA: Cho, Liu, Xu, Fahrezi and Joshi 2024 (EMNLP), "Heterogeneous LoRA for Federated Fine-tuning of On-Device
Foundation Models".

Clients have LoRA's matrices of different ranks: the first rows of the server's A and columns of its B. A client pulls
the last of its rows and columns to zero while it trains, and leaves them out from then on if they became smaller. The
server fills up what it gets with zeros and weighs each client by the norm of its product B_i A_i.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp, join, mean,
)  # fmt: skip
from methods.lora import cut, layers_of, padded, product, rank_of


class Hyper(Hyperparameters):
    """Hyperparameters of HetLoRA.

    Attributes:
        ranks: ranks of the clients in the beginning, in turn, at most the cell's; empty: the cell's rank for all.
        gamma: share of its rank that a client keeps when it prunes, rounded down, but rank 1; 1: it never prunes.
        lam: weight of the norms of what a client would prune, in its loss.
    """

    ranks: tuple[int, ...] = hp((), static=True)
    gamma: float = hp(0.99, gt=0, le=1, static=True)
    lam: float = hp(0.01, ge=0, search=Range(1e-4, 1, log=True))

    def degenerate(self) -> list[str]:
        return ["gamma = 1: HetLoRA's clients never prune their ranks"] if self.gamma == 1 else []


@METHODS.register("hetlora")
class HetLoRA(Method):
    """LoRA with ranks by client, which clients prune themselves; the server weighs by the norms of the products."""

    Hyper = Hyper
    adapter = "lora"

    def init(self, server: Server) -> None:
        server.state["model"], server.state["ranks"] = server.initial_model(), {}
        if not all(1 <= rank <= rank_of(server.state["model"]) for rank in self.hp.ranks):
            limit = rank_of(server.state["model"])
            raise ValueError(f"HetLoRA's ranks {self.hp.ranks} should be from 1 to the cell's rank {limit}")

    def broadcast(self, server: Server, client: Client) -> State:
        ranks = self.hp.ranks or (rank_of(server.state["model"]),)
        return cut(server.state["model"], server.state["ranks"].get(client.id, ranks[client.id % len(ranks)]))

    def client_round(self, client: Client, down: State) -> Program:
        w, rank = padded(down), len(down["a"][0])
        kept = max(1, int(self.hp.gamma * rank))
        tail = torch.zeros(rank_of(w), dtype=w.weights.dtype, device=w.weights.device)
        tail[kept:rank] = 1
        trained = yield Train({"w": w}, loss=pulled_loss, context={"tail": tail})
        smaller = bool(tail_norms(trained["w"], tail) < tail_norms(w, tail))
        yield Upload(cut(trained["w"], kept if smaller else rank))
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        models = [padded(m.values) for m in messages]
        norms = [float(sum(product(w, layer).square().sum() for layer in layers_of(w)) ** 0.5) for w in models]
        weights = norms if any(norms) else [m.weight for m in messages]
        weighed = [replace(m, values={"w": w}, weight=s) for m, w, s in zip(messages, models, weights, strict=True)]
        matrices = mean(weighed, "w").part(*models[0].spec.named("lora_a", "lora_b"))
        server.state["model"] = join(mean(messages, "rest"), matrices)
        server.state["ranks"] = server.state["ranks"] | {m.client: len(m["a"][0]) for m in messages}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        trained = yield Train({"w": padded(down)}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def tail_norms(w: Params, tail: Tensor) -> Tensor:
    """The sum over layers of ||B|| ||A||, of the columns and rows that `tail [rank]` marks by ones."""
    tensors, total = w.tensors(), tail.new_zeros(())
    for layer in layers_of(w):
        rows = tensors[f"{layer}.lora_a"].flatten(1) * tail.unsqueeze(1)
        total = total + torch.linalg.vector_norm(tensors[f"{layer}.lora_b"] * tail) * torch.linalg.vector_norm(rows)
    return total


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam ||B|| ||A|| of the last columns and rows."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.lam * tail_norms(values["w"], ctx.tail)
