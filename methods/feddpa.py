"""FedDPA: Yang, Long, Shen, Jiang and Blumenstein 2024 (NeurIPS), "Dual-Personalizing Adapter for Federated Foundation
Models", the iterative form FedDPA-T.

A layer has a global adapter, which is averaged, and the client's own, which is trained beside the received one. Their
outputs are mixed; for a test sample the global adapter's weight is its likeness to the client's training samples.

The first half of the rows of A and columns of B is the global adapter, the second half the own one.
"""

import copy
import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.method import (
    METHODS, Batch, ClassStats, Client, Forward, Hyperparameters, Message, Method, Params, Program, Range, Server,
    State, Train, Upload, Values, compose, cross_entropy, hp, mean,
)  # fmt: skip
from methods.lora import cut, layers_of, padded, rank_of, replaced


class Hyper(Hyperparameters):
    """Hyperparameters of FedDPA.

    Attributes:
        weight: weight of the own adapter while it is trained; the global one has the rest.
        most: weight of the global adapter for a test sample whose features have the direction of all training samples.
        dynamic: whether each test sample has a weight; else it is `weight`.
    """

    weight: float = hp(0.5, ge=0, le=1, search=Range(0.1, 0.9))
    most: float = hp(0.5, ge=0, le=1, static=True)
    dynamic: bool = hp(True, static=True)

    def degenerate(self) -> list[str]:
        return ["weight = 0: FedDPA's own adapters never move"] if self.weight == 0 else []


@METHODS.register("feddpa")
class FedDPA(Method):
    """A global and an own adapter, mixed for each test sample."""

    Hyper = Hyper
    adapter = "lora"
    trains = "both"

    def init(self, server: Server) -> None:
        if rank_of(server.initial_model()) % 2:
            raise ValueError("FedDPA needs an even rank: half of it is the global adapter's, half the own one's")
        server.state["model"] = padded(cut(server.initial_model(), half(server.initial_model())))

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        client.state["own"] = w.part(*w.spec.named("lora_a", "lora_b"))

    def broadcast(self, server: Server, client: Client) -> State:
        return cut(server.state["model"], half(server.state["model"]))

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": padded(down)}, loss=cross_entropy)
        yield Upload(cut(trained["w"], half(trained["w"])))
        yield from self.unselected_round(client, down)
        return trained["w"]

    def unselected_round(self, client: Client, down: State, epochs: int | None = None) -> Program:
        own, shared = {"own": client.state["own"]}, {"shared": padded(down)}
        trained = yield Train(own, loss=mixed_loss, context=shared, epochs=epochs)
        client.state["own"] = trained["own"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        server.state["model"] = mean([replace(m, values={"w": padded(m.values)}) for m in messages], "w")

    def personal(self, server: Server, client: Client, down: State) -> Program:
        shared, own = padded(down), client.state["own"]
        if not self.hp.dynamic:
            return mixed(shared, own, self.hp.weight)
        sums = yield ClassStats(mixed(shared, own, 1.0), of="directions")
        direction = sums.sum.sum(0) / sums.count.sum()
        return compose(by_sample, shared=shared, own=own, direction=direction, most=self.hp.most)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        yield from self.unselected_round(client, down, epochs)
        return (yield from self.personal(server, client, down))


def half(w: Params) -> int:
    """Rank of each of the two adapters."""
    return rank_of(w) // 2


def mixed(shared: Params, own: Params, weight: Any) -> Params:
    """The model with both adapters: (1 - weight) times the global one's outputs and weight times the own one's."""
    of_all, of_client, k, tensors = shared.tensors(), own.tensors(), half(shared), {}
    for layer in layers_of(shared):
        a, b = f"{layer}.lora_a", f"{layer}.lora_b"
        tensors[a] = torch.cat([of_all[a][:k], of_client[a][k:]])
        tensors[b] = torch.cat([(1 - weight) * of_all[b][:, :k], weight * of_client[b][:, k:]], 1)
    return replaced(shared, tensors)


def mixed_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the model with both adapters; the global one's outputs are detached."""
    both = mixed(ctx.shared, values["own"], ctx.hp.weight)
    return cross_entropy(model, {"w": detached(both, half(both))}, batch, ctx)


def detached(w: Params, ranks: int) -> Params:
    """The same model, through whose first ranks of A and B no gradient goes back to the layers before."""
    return Params(w.weights, w.buffers, _detached(w.spec, ranks))


@functools.lru_cache(maxsize=1)
def _detached(spec: Any, ranks: int) -> Any:
    module = copy.deepcopy(spec.module)
    for path in spec.named("lora_a"):
        module.get_submodule(path.rpartition(".")[0]).lora_detached = ranks
    return replace(spec, arch=f"{spec.arch} with {ranks} detached ranks", module=module)


def by_sample(model: Forward, parts: dict[str, Any], x: Tensor) -> Tensor:
    """Logits of samples; the global adapter weighs `most` times the mean cosine with the client's training samples."""
    shared, own = parts["shared"], parts["own"]
    features = functional.normalize(model.features(mixed(shared, own, 1.0), x))
    weights = parts["most"] * (features @ parts["direction"])

    def logits(sample: Tensor, weight: Tensor) -> Tensor:
        return model(mixed(shared, own, 1 - weight), sample.unsqueeze(0)).squeeze(0)

    return torch.vmap(logits)(x, weights)
