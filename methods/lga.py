"""LGA and PLGA: "Personalized Heterogeneous Federated Learning with Gradient Similarity" (anonymous), Algorithm 2.

At every tick of the round clock the server averages what has arrived. LGA estimates what a straggler's model would be
now, tensor by tensor; `plga` evaluates personalized models between the client's and the generic one.

The others are the baselines of the paper's Table 2: `fedavg_async` uses late models unchanged, `fedavg_sync` drops
them, `fedasync_mix` (its FedAsync) mixes them with the current generic model, and `perfedavg_async` (its Per-FedAvg)
uses them unchanged and takes two steps per batch.
"""

from dataclasses import replace
from typing import Any, Literal

import torch

from bench.method import METHODS, Batch, Client, Do, Hyperparameters, Message, Method, Params, Program, Range, Server
from bench.method import State, Tick, Train, Upload, Values, cross_entropy, hp, mean
from methods.leaps import between, leap, similarity
from methods.variants import variant

Late = Literal["leap", "mix", "as_is", "drop"]


class Hyper(Hyperparameters):
    """Hyperparameters of LGA.

    Attributes:
        late: treatment of a late model: replaced by the estimate of what it would be now (`leap`), mixed with the
            current generic model (`mix`), averaged unchanged (`as_is`) or dropped (`drop`).
        equation: equation of the estimate; 11 starts from the current generic model, 10 from the downloaded one.
        interpolate: whether personalized models lie between the client's own and the generic model.
        alpha, poly_a: a model that is k rounds late has the share alpha (1 + k)^-poly_a in its mixture.
        beta: learning rate of a second step on every batch (the first has the cell's); None: no second step.
    """

    late: Late = hp("leap", static=True)
    equation: Literal[10, 11] = hp(11, static=True)
    interpolate: bool = hp(False, static=True)
    alpha: float = hp(0.8, ge=0, le=1)
    poly_a: float = hp(0.5, ge=0)
    beta: float | None = hp(None, ge=0)

    def degenerate(self) -> list[str]:
        found = []
        if self.late == "mix" and self.alpha == 0:
            found.append("alpha = 0: late clients send the current generic model back")
        if self.beta == 0:
            found.append("beta = 0: the second step of a batch does nothing, and Per-FedAvg is FedAvg")
        return found


class PLGAHyper(Hyper):
    """LGA with personalized models between the client's own and the generic one."""

    interpolate: bool = hp(True, static=True)


class FedAvgAsyncHyper(Hyper):
    """FedAvg on the round clock; late models are averaged unchanged."""

    late: Late = hp("as_is", static=True)


class FedAvgSyncHyper(Hyper):
    """FedAvg on the round clock; late models are dropped."""

    late: Late = hp("drop", static=True)


class FedAsyncMixHyper(Hyper):
    """FedAvg on the round clock; late models are mixed with the current one, with less weight the later they are."""

    late: Late = hp("mix", static=True)
    alpha: float = hp(0.8, ge=0, le=1, search=Range(0.1, 1))


class PerFedAvgAsyncHyper(Hyper):
    """FedAvg on the round clock with two steps per batch; late models are averaged unchanged."""

    late: Late = hp("as_is", static=True)
    beta: float | None = hp(0.001, ge=0, search=Range(1e-4, 1e-1, log=True))


@METHODS.register("lga")
class LGA(Method):
    """FedAvg on the round clock; a late model is replaced by an estimate of what it would be now."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)
    trigger = Tick()

    def client_round(self, client: Client, down: State) -> Program:
        start = {"w": down["model"]}
        trained = yield Train(start, loss=cross_entropy) if self.hp.beta is None else Train(start, step=two_steps)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state, now = server.state, server.state["model"]
        after = state.get("after_start", {})  # of clients still at work: the generic model one round after their start
        estimates = [replace(m, values={"model": self._estimate(m, after.get(m.client), now)}) for m in messages]
        in_time = [m for m in estimates if m.staleness == 0 or self.hp.late != "drop"]
        if in_time:
            state["model"] = mean(in_time, "model")
        models = dict(state.get("personal", {}))
        for m, estimate in zip(messages, estimates, strict=True):
            models[m.client] = estimate["model"]
            if self.hp.interpolate:
                # For a client in time, the model one round after its start is the current one, which was just made.
                first, current = (after[m.client], now) if m.staleness else (state["model"], state["model"])
                share = similarity(m.base["model"], first, m["model"])
                models[m.client] = between(estimate["model"], current, share)
        state["personal"] = models
        firsts = after | dict.fromkeys(server.selected, state["model"])
        waiting = sorted(firsts.keys() - {m.client for m in messages})
        state["after_start"] = {i: firsts[i] for i in waiting if server.sizes[i]}  # who left begins anew

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return server.state.get("personal", {}).get(client.id, down["model"])

    def _estimate(self, message: Message, first: Params | None, now: Params) -> Params:
        w: Params = message["model"]
        if message.staleness == 0 or self.hp.late in ("as_is", "drop"):
            return w
        if self.hp.late == "mix":
            share = self.hp.alpha * (1 + message.staleness) ** -self.hp.poly_a
            return w.with_weights(torch.lerp(now.weights, w.weights, share))
        assert first is not None, "a late client has seen a version close"
        base = message.base["model"]
        return leap(base, first, now, w, similarity(base, first, w), self.hp.equation)


variant("plga", LGA, PLGAHyper)
variant("fedavg_async", LGA, FedAvgAsyncHyper)
variant("fedavg_sync", LGA, FedAvgSyncHyper)
variant("fedasync_mix", LGA, FedAsyncMixHyper)
variant("perfedavg_async", LGA, PerFedAvgAsyncHyper)


def two_steps(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """The cell's step, then a plain gradient step with learning rate beta on the same batch.

    Only the first step changes running statistics, so that beta = 0 is the same as no second step.
    """
    gradients, values = do.gradient(cross_entropy, values, batch, ctx)
    values = do.update(values, gradients)
    again, _ = do.gradient(cross_entropy, values, batch, ctx)
    w = values["w"]
    return {"w": w.with_weights(w.weights - ctx.hp.beta * again["w"])}
