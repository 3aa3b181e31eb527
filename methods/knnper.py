"""kNN-Per: Marfoq, Neglia, Kameni and Vidal 2022 (ICML), "Personalized Federated Learning through Local Memorization",
Algorithm 1.

FedAvg's model provides features. A client stores those of its training samples, and mixes the model's prediction with a
vote of the nearest training samples.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Client, Evaluate, Hyperparameters, Method, Params, Predict, Program, Range, Server,
    State, Train, Upload, Values, compose, cross_entropy, hp,
)  # fmt: skip
from methods.labels import own_labels

GRID = [i / 10 for i in range(11)]  # candidates for the share of the vote
UNSEEN = 0.5  # the share if a client has no validation samples


class Hyper(Hyperparameters):
    """Hyperparameters of kNN-Per.

    Attributes:
        k: number of neighbours.
        scale: scale of a neighbour's weight exp(-distance / scale), with the squared distance per dimension.
        share: share of the neighbours' vote (lambda in the paper); None: the one of 0, 0.1, ..., 1 that is most
            accurate on the client's validation samples.
    """

    k: int = hp(10, ge=1, static=True, search=(5, 10, 20))
    scale: float = hp(1.0, gt=0, static=True, search=Range(0.1, 10, log=True))
    share: float | None = hp(None, ge=0, le=1, static=True)

    def degenerate(self) -> list[str]:
        return ["share = 0: the personalized models of kNN-Per are those of FedAvg"] if self.share == 0 else []


@METHODS.register("knnper")
class KNNPer(Method):
    """FedAvg, whose predictions are mixed with a vote of the client's nearest training samples."""

    Hyper = Hyper
    symmetric = False  # k is a number of samples
    trains = "both"
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Program:
        w: Params = down["model"]
        keys = yield Predict(w, "train", output="features")
        labels = yield from own_labels(client, w)
        parts = {"w": w, "keys": keys, "labels": labels, "k": self.hp.k, "scale": self.hp.scale}
        if self.hp.share is not None:
            return compose(remembered, **parts, share=w.weights.new_tensor(self.hp.share))
        tried = [compose(remembered, **parts, share=w.weights.new_tensor(share)) for share in GRID]
        losses, accuracies = yield Evaluate(tried, "holdout")
        if not losses.any():
            return tried[GRID.index(UNSEEN)]
        return tried[max(range(len(GRID)), key=lambda i: (float(accuracies[i]), -float(losses[i])))]

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client needs only the features of its training samples, no training."""
        return (yield from self.personal(server, client, down))


def remembered(model: Any, parts: Values, x: Tensor) -> Tensor:
    """Log of (share times the neighbours' vote + (1 - share) times the model's probabilities), `[samples, classes]`."""
    z, keys, share = model.features(parts["w"], x), parts["keys"], parts["share"]
    opinion = model.head(parts["w"], z).log_softmax(1)
    squared = z.square().sum(1, keepdim=True) + keys.square().sum(1) - 2 * z @ keys.T
    nearest = squared.topk(min(parts["k"], len(keys)), largest=False)
    weight = (-nearest.values / (keys.shape[1] * parts["scale"])).softmax(1)
    member = parts["labels"][nearest.indices].unsqueeze(2) == torch.arange(opinion.shape[1], device=x.device)
    vote = (weight.unsqueeze(2) * member).sum(1)
    mixed = torch.logaddexp(share.log() + vote.log(), (1 - share).log() + opinion)
    return mixed.clamp(min=0.9 * torch.log(mixed.new_tensor(torch.finfo(mixed.dtype).tiny)))
