"""pFedFDA: McLaughlin and Su 2024 (NeurIPS), "Personalized Federated Learning via Feature Distribution Adaptation".

Features of a class are modelled as Gaussian, with one covariance for all classes. The body is trained with the
classifier that follows from the global Gaussians. A client's own classifier follows from a mixture of its own and the
global Gaussians' parameters, whose share is chosen by two-fold cross-validation on its samples.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Predict, Program, Range, Server, State, Train, Upload,
    Values, compose, hp,
)  # fmt: skip
from methods.labels import own_labels

SHARES = [i / 20 for i in range(21)]  # candidates for beta
FEW = 2  # a class with at most this many samples keeps its global mean
SMALL = 1e-4  # added to the class priors; also the weight of the sphere to which covariances are shrunk


class Hyper(Hyperparameters):
    """Hyperparameters of pFedFDA.

    Attributes:
        beta: share of a client's own Gaussians; None: the best of 0, 0.05, ..., 1 in two-fold cross-validation.
        ridge: added to the diagonal of a client's covariance.
    """

    beta: float | None = hp(None, ge=0, le=1, static=True)
    ridge: float = hp(1.0, gt=0, static=True, search=Range(1e-4, 1, log=True))

    def degenerate(self) -> list[str]:
        return ["beta = 0: the Gaussians stay what they were drawn as"] if self.beta == 0 else []


@METHODS.register("pfedfda")
class PFedFDA(Method):
    """A shared body, and classifiers that apply Bayes' rule to Gaussian models of its features."""

    Hyper = Hyper
    symmetric = False  # a covariance divides by the number of samples minus one
    trains = "both"
    mean_of = ("body", "means", "covariance")

    def init(self, server: Server) -> None:
        w = server.initial_model()
        d = w.tensors()["head.weight"].shape[1]
        means = torch.as_tensor(server.rng("pfedfda").standard_normal((server.num_classes, d))).to(w.weights)
        covariance = torch.eye(d).to(w.weights)
        server.state |= {"body": w.without("head"), "means": means, "covariance": covariance}

    def client_round(self, client: Client, down: State) -> Program:
        prior = priors(client, down["means"])
        weight, bias = discriminant(down["means"], down["covariance"], prior)
        trained = yield Train({"w": down["body"]}, loss=bayes_loss, context={"weight": weight, "bias": bias})
        means, covariance = yield from self.adapted(client, trained["w"], down, prior)
        yield Upload({"body": trained["w"], "means": means, "covariance": covariance})
        return classifier(trained["w"], means, covariance, prior)

    def adapted(self, client: Client, body: Params, down: State, prior: Tensor) -> Program:
        """Means and covariance between the client's own, for this body's features, and the global ones."""
        z = yield Predict(body, "train", output="features")
        labels = yield from own_labels(client, body)
        z, y, like = z.double(), labels.long(), down["means"]
        means, covariance = like.double(), down["covariance"].double()
        share = self.hp.beta
        if share is None:
            share = best_share(z, y, means, covariance, prior.double(), self.hp.ridge)
        own = estimate(z, y, means, self.hp.ridge)
        return tuple(torch.lerp(b, a, share).to(like.dtype) for a, b in zip(own, (means, covariance), strict=True))

    def generic(self, server: Server) -> Params:
        state = server.state
        alike = torch.full_like(state["means"][:, 0], 1 / server.num_classes)
        return classifier(state["body"], state["means"], state["covariance"], alike)

    def personal(self, server: Server, client: Client, down: State) -> Program:
        prior = priors(client, down["means"])
        means, covariance = yield from self.adapted(client, down["body"], down, prior)
        return classifier(down["body"], means, covariance, prior)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client needs only its Gaussians, no training."""
        return (yield from self.personal(server, client, down))


def priors(client: Client, like: Tensor) -> Tensor:
    """The client's class shares, smoothed so that none is 0, `[classes]`."""
    share = client.label_counts.to(like.dtype) / client.n_train + SMALL
    return share / share.sum()


def estimate(z: Tensor, y: Tensor, means: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Class means `[classes, d]` of features `[samples, d]`, and their covariance `[d, d]` around these means."""
    member = functional.one_hot(y, len(means)).to(z.dtype)
    count = member.sum(0).unsqueeze(1)
    center = torch.where(count > FEW, member.T @ z / count.clamp(min=1), means)
    away = z - center[y]
    return center, away.T @ away / max(len(z) - 1, 1) + ridge * torch.eye(z.shape[1]).to(z)


def best_share(z: Tensor, y: Tensor, means: Tensor, covariance: Tensor, prior: Tensor, ridge: float) -> float:
    """The share with the smallest cross-entropy in two-fold cross-validation, with halves of each class.

    Classes with one sample are left out; if there are no others, the share is 0.
    """
    member = functional.one_hot(y, len(means))
    turn, twice = (member.cumsum(0) * member).sum(1), member.sum(0)[y] >= 2
    share, cost = torch.tensor(SHARES).to(z).view(-1, 1, 1), torch.zeros(len(SHARES)).to(z)
    for half in (0, 1) if twice.any() else ():
        fit, held = twice & (turn % 2 == half), twice & (turn % 2 != half)
        center, spread = estimate(z[fit], y[fit], means, ridge)
        weight, bias = discriminant(torch.lerp(means, center, share), torch.lerp(covariance, spread, share), prior)
        logits = scores(z[held], weight, bias.unsqueeze(1))
        cost = cost + torch.stack([functional.cross_entropy(one, y[held]) for one in logits])
    return SHARES[int(cost.argmin())]


def discriminant(means: Tensor, covariance: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[..., classes, d]`, biases `[..., classes]` of Bayes' rule, which is linear for a common covariance."""
    variance = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    sphere = variance * torch.eye(covariance.shape[-1]).to(covariance)
    weight = torch.linalg.solve(torch.lerp(covariance, sphere, SMALL), means.mT).mT
    return weight, prior.log() - (means * weight).sum(-1) / 2


def scores(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log of prior times density of features `[samples, d]`, up to a constant, `[..., samples, classes]`."""
    return z @ weight.mT + bias


def classifier(body: Params, means: Tensor, covariance: Tensor, prior: Tensor) -> Params:
    """The model that classifies by the Gaussians of the body's features."""
    weight, bias = discriminant(means, covariance, prior)
    return compose(classified, w=body, weight=weight, bias=bias)


def classified(model: Any, parts: Values, x: Tensor) -> Tensor:
    """Logits `[samples, classes]`."""
    return scores(model.features(parts["w"], x), parts["weight"], parts["bias"])


def bayes_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the global Gaussians' classifier, which is frozen."""
    logits = scores(model.features(values["w"], batch.x), ctx.weight, ctx.bias)
    return -batch.mean(logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))
