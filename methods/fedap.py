"""FedAP: Lu, Wang, Chen, Qin, Xu, Dimitriadis and Qin 2022 (IEEE Transactions on Big Data), "Personalized Federated
Learning with Adaptive Batchnorm for Healthcare".

Normalisation layers stay with the clients. The other layers of a client's model are its own weighted mean of all
clients' layers: the nearer the inputs of two clients' BatchNorm layers are in distribution, the larger is the weight.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.method import (
    METHODS, NORMALISATION, Client, Hyperparameters, Message, Method, Params, Predict, Program, Range, Server, State,
    Train, Upload, compose, cross_entropy, hp, join, mean,
)  # fmt: skip

NEAREST = 1e-14  # smallest distance, as clients with equal statistics would otherwise have infinite weights


class Hyper(Hyperparameters):
    """Hyperparameters of FedAP.

    Attributes:
        lam: weight of a client's own layers in its mean.
        warmup: rounds of FedBN before statistics are taken (the paper's f-FedAP); 0: they are those of the initial
            model, which should be a pre-trained one.
    """

    lam: float = hp(0.5, ge=0, le=1, search=Range(0.1, 0.9))
    warmup: int = hp(5, ge=0, static=True, search=(1, 5, 10, 50))

    def degenerate(self) -> list[str]:
        return ["lam = 1: after the warm-up FedAP's clients train alone"] if self.lam == 1 else []


@METHODS.register("fedap")
class FedAP(Method):
    """FedBN whose other layers are mixed for each client, by the distances of the clients' BatchNorm statistics."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        w = server.initial_model()
        shared = w.without(*w.spec.of_type(*NORMALISATION))
        server.state |= {"shared": shared, "statistics": {}, "trained": {}, "mixed": {}}

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        client.state["norm"] = w.part(*w.spec.of_type(*NORMALISATION))

    def broadcast(self, server: Server, client: Client) -> State:
        """The client's own mean, or that of all clients for one whose statistics are unknown."""
        measure = server.round >= self.hp.warmup and client.id not in server.state["statistics"]
        return {"shared": server.state["mixed"].get(client.id, server.state["shared"]), "measure": measure}

    def client_round(self, client: Client, down: State) -> Program:
        w = join(down["shared"], client.state["norm"])
        sent = {"statistics": (yield from statistics(w))} if down["measure"] else {}
        trained = (yield Train({"w": w}, loss=cross_entropy))["w"]
        local = trained.spec.of_type(*NORMALISATION)
        client.state["norm"] = trained.part(*local)
        yield Upload(sent | {"shared": trained.without(*local)})
        return trained

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        server.state["shared"] = mean(messages, "shared")
        new = {m.client: m["statistics"] for m in messages if "statistics" in m.values}
        known = server.state["statistics"] | new
        trained = server.state["trained"] | {m.client: m["shared"] for m in messages if m.client in known}
        if not known:
            return
        models = list(trained.values())
        weights, buffers = torch.stack([w.weights for w in models]), torch.stack([w.buffers for w in models])
        shares = mixing(weights, [known[i] for i in trained], self.hp.lam)
        mixed = {i: Params(a @ weights, a @ buffers, models[0].spec) for i, a in zip(trained, shares, strict=True)}
        server.state |= {"statistics": known, "trained": trained, "mixed": mixed}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["shared"], client.state["norm"])

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The weights of all clients in each client's mean; empty until the statistics of all are known."""
        known = server.state["statistics"]
        if known.keys() != server.sizes.keys():
            return {}
        return {"weights": mixing(server.state["shared"].weights, [known[i] for i in sorted(known)], self.hp.lam)}


def batchnorms(network: nn.Module) -> list[Any]:
    """The BatchNorm layers of a network, in its order."""
    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
    return [layer for layer in network.modules() if isinstance(layer, kinds)]


def statistics(w: Params) -> Program:
    """Mean and standard deviation of the inputs of each BatchNorm layer over the client's samples, `[2, channels]`."""
    channels = [layer.num_features for layer in batchnorms(w.spec.module)]
    if not channels:
        return []
    means, variances = (yield Predict(compose(moments, w=w), "train", "logits")).chunk(2, dim=1)
    deviation = (variances.mean(0) + means.var(0, correction=0)).sqrt()  # within samples, and between them
    return [torch.stack(layer) for layer in zip(means.mean(0).split(channels), deviation.split(channels), strict=True)]


def moments(model: Any, parts: dict[str, Any], x: Tensor) -> Tensor:
    """Mean and variance, in each sample, of what enters the BatchNorm layers: `[samples, 2 channels]`."""
    w, entered = parts["w"], {}
    module = w.spec.module
    network = copy.deepcopy(module, {id(t): t for t in (*module.parameters(), *module.buffers())}).eval()

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        entered[layer] = inputs[0].unsqueeze(-1).flatten(2)

    layers = batchnorms(network)
    for layer in layers:
        layer.register_forward_pre_hook(note)
    functional_call(network, w.spec.constants(x.device, w.weights.dtype) | w.tensors(), (x,))
    values = [entered.get(layer, w.weights.new_zeros(len(x), layer.num_features, 1)) for layer in layers]
    return torch.cat([z.mean(2) for z in values] + [z.var(2, correction=0) for z in values], 1)


def mixing(like: Tensor, clients: Sequence[Sequence[Tensor]], lam: float) -> Tensor:
    """w_ii = lam, and w_ij = (1 - lam) (1 / d_ij) / sum_k (1 / d_ik), `[clients, clients]`.

    d_ij is the sum over layers of the Wasserstein distances of two Gaussians with independent channels, each the root
    of ||mu_i - mu_j||^2 + ||sigma_i - sigma_j||^2.
    """
    distance = like.new_zeros(len(clients), len(clients))
    for layer in zip(*clients, strict=True):
        s = torch.stack(layer).flatten(1)
        distance = distance + (s.unsqueeze(1) - s).norm(dim=2)
    if len(clients) == 1:
        return torch.ones_like(distance)
    near = (1 / distance.clamp(min=NEAREST)).fill_diagonal_(0)
    return ((1 - lam) * near / near.sum(1, keepdim=True)).fill_diagonal_(lam)
