"""CFL: Sattler, Müller and Samek 2020, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
Under Privacy Constraints", Algorithm 4 without its tree.

If a cluster's mean update is nearly 0 but some client's update is not, its clients disagree. The cluster is then split
in two so that the largest cosine of updates across the split is as small as possible; each half continues as a FedAvg.
"""

import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    cross_entropy, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of CFL, to be chosen by the typical norm of updates.

    Attributes:
        eps1: norm of a cluster's mean update below which the cluster has converged.
        eps2: norm of a single update above which its client has not converged.
        gamma_max: relative error of an update as a gradient of its cluster's distribution. Halves whose largest cosine
            a across has sqrt((1 - a) / 2) <= gamma_max may be of one distribution and stay together.
    """

    eps1: float = hp(0.4, ge=0, search=Range(0.01, 1, log=True))
    eps2: float = hp(1.6, ge=0, search=Range(0.1, 10, log=True))
    gamma_max: float = hp(0.0, ge=0, le=1)

    def degenerate(self) -> list[str]:
        return ["eps1 = 0: CFL never splits and is FedAvg"] if self.eps1 == 0 else []


@METHODS.register("cfl")
class CFL(Method):
    """FedAvg that splits a cluster of clients in two when it has converged but some of its clients have not."""

    Hyper = Hyper
    trains = "pm"
    everyone = True  # a split needs the updates of all

    def init(self, server: Server) -> None:
        server.state["clusters"] = [sorted(server.sizes)]
        server.state["models"] = [server.initial_model()]

    def broadcast(self, server: Server, client: Client) -> State:
        for ids, w in zip(server.state["clusters"], server.state["models"], strict=True):
            if client.id in ids:
                return {"model": w}
        return {"model": self._mean_of_clusters(server)}

    def _mean_of_clusters(self, server: Server) -> Params:
        """The model that a new client gets: the mean of the clusters' models, weighted by their training samples."""
        clusters, models = server.state["clusters"], server.state["models"]
        sizes = [sum(server.sizes[i] for i in ids) for ids in clusters]
        return mean([Message(0, {"model": w}, n, 0) for w, n in zip(models, sizes, strict=True)], "model")

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        clusters: list[list[int]] = []
        models: list[Params] = []
        for ids, w in zip(server.state["clusters"], server.state["models"], strict=True):
            heard = [m for m in messages if m.client in ids]
            average = mean(heard, "model")
            updates = torch.stack([m["model"].weights - w.weights for m in heard])
            norm = (average.weights - w.weights).norm()
            halves = [0] * len(ids)
            if len(ids) > 1 and norm < self.hp.eps1 and updates.norm(dim=1).max() > self.hp.eps2:
                halves = split(updates, self.hp.gamma_max)
            if any(halves):
                clusters += [[i for i, h in zip(ids, halves, strict=True) if h == half] for half in (0, 1)]
                models += [average, average]
            else:
                clusters.append(ids)
                models.append(average)
        server.state |= {"clusters": clusters, "models": models}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return down["model"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """1 where two clients are in one cluster."""
        of = {i: k for k, ids in enumerate(server.state["clusters"]) for i in ids}
        row = torch.tensor([of[i] for i in sorted(server.sizes)])
        return {"clusters": (row.unsqueeze(0) == row.unsqueeze(1)).double()}


def split(updates: Tensor, gamma_max: float) -> list[int]:
    """The half, 0 or 1, of each row, chosen so that the largest cosine across the halves is smallest.

    This is single linkage cut at two clusters: the pairs with the largest cosines are joined first, the halves last, at
    the largest cosine across them. All rows are in half 0 if that is too large for `gamma_max`.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage  # imported here, as cells of other methods run without scipy
    from scipy.spatial.distance import squareform

    norm = updates.norm(dim=1, keepdim=True)
    unit = torch.where(norm > 0, updates / norm, 0.0).double().cpu()
    distance = (1 - unit @ unit.T).clamp(min=0)
    tree = linkage(squareform(distance.fill_diagonal_(0).numpy(), checks=False), "single")
    if (tree[-1, 2] / 2) ** 0.5 <= gamma_max:
        return [0] * len(updates)
    halves = cut_tree(tree, 2)[:, 0].tolist()  # gives two clusters even if distances are equal
    return [0 if half == halves[0] else 1 for half in halves]
