"""COMET: Cho et al. 2023, "Communication-Efficient and Model-Heterogeneous Personalized Federated Learning via
Clustered Knowledge Transfer", Algorithm 1.

What the paper calls logits are probabilities. The predictions that Algorithm 1 needs before its first round (of the set
S^-1) come from the clients of the first round, who exchange them in that round. Private batches are the cell's, so that
runs are paired with those of other methods; public batches are drawn uniformly. The forward pass on public samples does
not change running statistics.
"""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Exchange, Feed, Hyperparameters, Message, Method, Params, Predict, Program, Server, State,
    Train, Upload, Values, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of COMET; `c` is the number of clusters, `public_batch` the paper's b'."""

    c: int = hp(4, ge=1, static=True, search=(1, 2, 3, 4))
    lam: float = hp(2.0, ge=0, search=(0.05, 0.1, 0.5, 1, 2, 4))
    public_batch: int = hp(128, ge=1, static=True, search=(32, 64, 128))

    def degenerate(self) -> list[str]:
        return ["lam = 0: COMET is Local"] if self.lam == 0 else []


@METHODS.register("comet")
class COMET(Method):
    """Clients of any architecture are pulled to the nearest of c centroids of all predictions on public samples."""

    Hyper = Hyper
    trains = "pm"
    public = True
    mixes_models = True

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def broadcast(self, server: Server, client: Client) -> State:
        return dict(server.state)

    def client_round(self, client: Client, down: State) -> Program:
        own = yield Predict(client.state["personal"])
        if "centroids" not in down:
            down = yield Exchange({"probabilities": own})
        trained = yield Train(
            {"w": client.state["personal"]},
            loss=pulled_loss,
            side={"public": Feed("public", self.hp.public_batch, order="uniform", stream=1)},
            context={"target": nearest(down["centroids"], own)},
        )
        client.state["personal"] = trained["w"]
        probabilities = yield Predict(trained["w"])
        yield Upload({"probabilities": probabilities})
        return trained["w"]

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        found = centroids([m["probabilities"] for m in messages], self.hp.c)
        return {m.client: {"centroids": found} for m in messages}

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        server.state["centroids"] = centroids([m["probabilities"] for m in messages], self.hp.c)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["personal"]
        return w


def nearest(candidates: Tensor, own: Tensor) -> Tensor:
    """The centroid, of `candidates` `[c, samples, classes]`, nearest (Euclidean) to `own` `[samples, classes]`."""
    return candidates[((candidates - own) ** 2).sum((1, 2)).argmin()]


def centroids(points: list[Tensor], c: int) -> Tensor:
    """c-means of the matrices: `[clusters, samples, classes]`, at most c clusters, in the order of their first members.

    Lloyd's algorithm from ten k-means++ starts (scikit-learn), on float64 whatever the precision of the run.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    flat = np.stack([p.reshape(-1).cpu().numpy() for p in points]).astype(np.float64)
    with warnings.catch_warnings():
        # Clients with equal predictions share a cluster, so others stay empty; this needs no warning.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(n_clusters=min(c, len(points)), n_init=10, random_state=0).fit(flat).labels_
    groups = [np.flatnonzero(labels == k).tolist() for k in dict.fromkeys(labels.tolist())]
    return torch.stack([torch.stack([points[i] for i in group]).mean(0) for group in groups])


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + lam times the mean over public samples of ||s(w, x) - target(x)||^2."""
    public = batch.side["public"]
    probabilities = model(values["w"], public.x, stats="frozen").softmax(1)
    distance = public.mean(((probabilities - ctx.target[public.index]) ** 2).sum(1))
    return cross_entropy(model, values, batch, ctx) + ctx.hp.lam * distance
