"""FlexLoRA: Bai, Chen, Qian, Yao and Li 2024 (NeurIPS), "Federated Fine-tuning of Large Language Models under
Heterogeneous Tasks and Client Resources".

Clients have LoRA's matrices of different ranks. The server averages the products B_i A_i, decomposes the mean into
singular values, and sends each client as many of the largest as its rank.

A client of smaller rank trains matrices of the cell's rank whose further rows of A and columns of B are zero; they have
no gradient and stay zero.
"""

from dataclasses import replace

import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload, cross_entropy,
    hp, join, mean,
)  # fmt: skip
from bench.ties import largest
from methods.lora import cut, layers_of, padded, product, rank_of, replaced


class Hyper(Hyperparameters):
    """Hyperparameters of FlexLoRA.

    Attributes:
        ranks: ranks of the clients, in turn, at most the cell's; empty: the cell's rank for all.
    """

    ranks: tuple[int, ...] = hp((), static=True)

    def degenerate(self) -> list[str]:
        return [] if self.ranks else ["ranks = (): all clients of FlexLoRA have the cell's rank"]


@METHODS.register("flexlora")
class FlexLoRA(Method):
    """LoRA with ranks by client: the server averages products and decomposes their mean."""

    Hyper = Hyper
    adapter = "lora"

    def init(self, server: Server) -> None:
        server.state["model"] = w = server.initial_model()
        if not all(1 <= rank <= rank_of(w) for rank in self.hp.ranks):
            raise ValueError(f"FlexLoRA's ranks {self.hp.ranks} should be from 1 to the cell's rank {rank_of(w)}")

    def rank(self, client: Client, w: Params) -> int:
        """The client's rank."""
        return self.hp.ranks[client.id % len(self.hp.ranks)] if self.hp.ranks else rank_of(w)

    def broadcast(self, server: Server, client: Client) -> State:
        return cut(server.state["model"], self.rank(client, server.state["model"]))

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": padded(down)}, loss=cross_entropy)
        yield Upload(cut(trained["w"], self.rank(client, trained["w"])))
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        initial, models = server.initial_model(), [padded(m.values) for m in messages]
        new = join(mean(messages, "rest"), initial.part(*initial.spec.named("lora_a", "lora_b")))
        factors: dict[str, Tensor] = {}
        for layer in layers_of(new):
            products = [replace(m, values={"w": product(w, layer)}) for m, w in zip(messages, models, strict=True)]
            b, a = factorised(mean(products, "w"), initial.tensors()[f"{layer}.lora_a"])
            factors |= {f"{layer}.lora_a": a, f"{layer}.lora_b": b}
        server.state["model"] = replaced(new, factors)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        trained = yield Train({"w": padded(down)}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def factorised(matrix: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """B = U S and A = V^T of the largest singular values of a matrix, as many as `start` has rows.

    Where a singular value is zero, A gets that row of `start`: as in the beginning of LoRA, B is zero and A is not.
    """
    u, values, v = torch.linalg.svd(matrix.flatten(1), full_matrices=False)
    k = min(len(start), len(values))
    # The sign of a pair of vectors is free: the largest number of a row of A is made positive.
    signs = torch.where(largest(v.abs().T, 1).T, v, 0.0).sum(1).sign()[:k]
    tiny = max(matrix.flatten(1).shape) * torch.finfo(matrix.dtype).eps * values[0]
    there = values[:k] > tiny
    a = torch.where(there.unsqueeze(1), v[:k] * signs.unsqueeze(1), start.flatten(1)[:k])
    b = torch.where(there, u[:, :k] * (values[:k] * signs), 0.0)
    a = torch.cat([a, start.flatten(1)[k:]]).view_as(start)
    return torch.cat([b, b.new_zeros(len(b), len(start) - k)], 1), a
