"""FedALA: Zhang, Hua, Wang, Song, Xue, Ma and Guan 2023 (AAAI), "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", Algorithm 1.

A client starts from a mixture of its own last model and the received one. In the upper layers every weight is mixed by
an entry of W in [0, 1]. W is learned: until convergence the first time, later in one pass over a part of the data.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Feed, Hyperparameters, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp, join,
)  # fmt: skip

LAST, SPREAD = 10, 0.1  # W has converged if the standard deviation of the last 10 losses is below 0.1
PASSES = 100  # largest number of passes the first time, if W does not converge


class Hyper(Hyperparameters):
    """Hyperparameters of FedALA.

    Attributes:
        eta: learning rate of W.
        share: share of the client's samples, drawn anew in each round, on which W is learned (s% in the paper).
        layers: layers that W mixes (the paper's p upper layers); the others are those of the received model.
        tested: the personalized model: right after the last local training, or the mixture that the next one would
            start from.
    """

    eta: float = hp(1.0, ge=0, static=True, search=Range(0.01, 1, log=True))
    share: float = hp(0.8, gt=0, le=1, static=True)
    layers: tuple[str, ...] = hp(("head",), static=True)
    tested: Literal["trained", "mixed"] = "trained"

    def degenerate(self) -> list[str]:
        stays = self.eta == 0 or not self.layers
        return ["W stays 1: the generic model of FedALA is that of FedAvg"] if stays else []


@METHODS.register("fedala")
class FedALA(Method):
    """FedAvg whose clients start from a mixture of their own and the received model, with learned weights."""

    Hyper = Hyper
    symmetric = False  # the mixing weights are learned on drawn samples
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        own = client.state["own"] = server.initial_model()
        client.state["mix"] = torch.ones_like(own.weights)
        client.state["started"] = False

    def client_round(self, client: Client, down: State) -> Program:
        own, received = client.state["own"], down["model"]
        client.state["mix"], client.state["started"] = yield from self.learn(client, own, received)
        start = mixture(own, received, client.state["mix"])
        trained = yield Train({"w": start}, loss=cross_entropy)
        client.state["own"] = trained["w"]
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def learn(self, client: Client, own: Params, received: Params) -> Program:
        """Train W and return it, and whether it has been trained until convergence.

        The samples and their order are the same in all passes of a round.
        """
        mix, started = client.state["mix"], client.state["started"]
        equal = torch.equal(own.weights, received.weights)  # as in the first round: nothing to mix
        if equal or not self.hp.eta or not self.hp.layers:
            return mix, started
        n = math.ceil(self.hp.share * client.n_train)
        losses: list[float] = []
        while len(losses) < (1 if started else PASSES):
            answer = yield Train(
                {"mix": mix},
                step=projected_step,
                epochs=1,
                feed=Feed(subset=n if n < client.n_train else None, stream=1),
                optimizer=SGD(lr=self.hp.eta, momentum=0.0, weight_decay=0.0, nesterov=False, clip=math.inf),
                context={"own": own, "received": received},
            )
            mix = answer["mix"]
            losses.append(float(answer.loss))
            if len(losses) > LAST and np.std(losses[-LAST:]) < SPREAD:
                break
        return mix, True

    def personal(self, server: Server, client: Client, down: State) -> Program | Params:
        return client.state["own"] if self.hp.tested == "trained" else self.mixed(client, down["model"])

    def mixed(self, client: Client, received: Params) -> Program:
        """The model from which the client would train if it received this one now."""
        mix, _ = yield from self.learn(client, client.state["own"], received)
        return mixture(client.state["own"], received, mix)


def mixture(own: Params, received: Params, mix: Tensor) -> Params:
    """own + (received - own) W, where W is 1 in the lower layers; running statistics are the received model's."""
    return received.with_weights(own.weights.lerp(received.weights, mix))


def mixture_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the mixture; a gradient by W does not lead through the lower layers."""
    layers = ctx.hp.layers
    mix = ctx.received.with_weights(values["mix"]).part(*layers).weights
    upper = mixture(ctx.own.part(*layers), ctx.received.part(*layers), mix)
    w = join(ctx.received.without(*layers), upper)
    likelihood = model(w, batch.x, stats="frozen").log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return -batch.mean(likelihood)


def projected_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """W <- clip(W - eta grad, 0, 1)."""
    gradients, values = do.gradient(mixture_loss, values, batch, ctx)
    return {"mix": do.update(values, gradients)["mix"].clamp(0, 1)}
