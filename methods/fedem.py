"""FedEM: Marfoq, Neglia, Bellet, Kameni and Vidal 2021 (NeurIPS), "Federated Multi-Task Learning under a Mixture of
Distributions", Algorithm 1.

Every client's data are a mixture of the same few distributions, with shares of its own. All clients train the component
models together; a sample's weight for a component is the probability that it comes from that component.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Gradient, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, Values,
    compose, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """`components`: number of distributions (M in the paper)."""

    components: int = hp(3, ge=1, static=True, search=(2, 3, 4))

    def degenerate(self) -> list[str]:
        return ["components = 1: the personalized models of FedEM are those of FedAvg"] if self.components == 1 else []


@METHODS.register("fedem")
class FedEM(Method):
    """Several shared component models; every client mixes their predictions with its own learned shares."""

    Hyper = Hyper
    trains = "pm"

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.mean_of = named(hyper.components)

    def init(self, server: Server) -> None:
        for m, name in enumerate(self.mean_of):
            server.state[name] = server.initial_model(draw=m)

    def init_client(self, server: Server, client: Client) -> None:
        like = server.initial_model().weights
        client.state["shares"] = like.new_full((self.hp.components,), 1 / self.hp.components)

    def client_round(self, client: Client, down: State) -> Program:
        shares = client.state["shares"]
        client.state["shares"] = yield from self.shares(shares, down)
        trained = yield Train(down, loss=weighted_losses, context={"log_shares": shares.log(), **received(down)})
        yield Upload(trained.values)
        return compose(mixture, shares=client.state["shares"], **trained.values)

    def shares(self, shares: Tensor, down: State) -> Program:
        """The E-step, and the M-step of the shares: the mean over all samples of the components' responsibilities."""
        gradients, _ = yield Gradient({"log_shares": shares.log()}, loss=log_evidence, context=received(down))
        return gradients["log_shares"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return compose(mixture, shares=client.state["shares"], **down)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client learns only its shares, with one step of EM in each epoch."""
        shares = client.state["shares"]
        for _ in range(epochs):
            shares = yield from self.shares(shares, down)
        return compose(mixture, shares=shares, **down)


def received(down: State) -> State:
    """The components, under the names that they have in a loss's context."""
    return {f"old_{name}": w for name, w in down.items()}


def named(components: int) -> tuple[str, ...]:
    """The names of the components, in order."""
    return tuple(f"component{m}" for m in range(components))


def mixture(model: Any, parts: Values, x: Tensor) -> Tensor:
    """log sum_m pi_m p_m(y | x), `[samples, classes]`."""
    opinions = [model(parts[name], x).log_softmax(1) for name in named(len(parts["shares"]))]
    return (torch.stack(opinions) + parts["shares"].log().view(-1, 1, 1)).logsumexp(0)


def log_likelihoods(model: Any, components: list[Params], batch: Batch, stats: str = "frozen") -> Tensor:
    """log p_m(y | x), `[components, samples]`."""
    at = batch.y.unsqueeze(1)
    return torch.stack([model(w, batch.x, stats=stats).log_softmax(1).gather(1, at).squeeze(1) for w in components])


def joint(model: Any, log_shares: Tensor, batch: Batch, ctx: Any) -> Tensor:
    """log pi_m p_m(y | x) of the received components, `[components, samples]`."""
    received = [getattr(ctx, f"old_{name}") for name in named(len(log_shares))]
    return log_likelihoods(model, received, batch) + log_shares.unsqueeze(1)


def log_evidence(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean of log sum_m pi_m p_m(y | x); its gradient with respect to log pi_m is the mean responsibility of m."""
    return batch.mean(joint(model, values["log_shares"], batch, ctx).logsumexp(0))


def weighted_losses(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Sum over components of the mean of q_m times the cross-entropy; q is that of the received models and shares."""
    q = joint(model, ctx.log_shares, batch, ctx).softmax(0)
    components = [values[name] for name in named(len(q))]
    return -batch.mean((q * log_likelihoods(model, components, batch, "batch")).sum(0))
