"""GPFL: Zhang, Hua, Wang, Song, Xue, Ma, Cao and Guan 2023 (ICCV), "GPFL: Simultaneously Learning Global and
Personalized Feature Information for Personalized Federated Learning", Algorithm 1.

A valve turns a feature into two: a generic one, which is pulled to the shared embedding of its class, and a
personalized one, from which the client's own head predicts.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    compose, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of GPFL.

    Attributes:
        lam: weight of the distance between a generic feature and the received embedding of its class.
        mu: weight of half the squared norm of embeddings and valve.
    """

    lam: float = hp(0.01, ge=0, search=Range(1e-4, 1, log=True))
    mu: float = hp(0.1, ge=0, search=Range(1e-3, 1, log=True))


@METHODS.register("gpfl")
class GPFL(Method):
    """A shared body, a shared valve that makes generic and personalized features, class embeddings, and own heads."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("body", "embeddings", "gamma", "beta")

    def init(self, server: Server) -> None:
        w = server.initial_model()
        d = w.tensors()["head.weight"].shape[1]
        drawn = server.rng("gpfl embeddings").standard_normal((server.num_classes, d))
        server.state |= {"body": w.without("head"), "embeddings": w.weights.new_tensor(drawn)}
        for name in ("gamma", "beta"):
            with torch.device("meta"):
                module = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.LayerNorm(d))
            server.state[name] = server.build(f"gpfl-{name}({d})", module)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["head"] = server.initial_model().part("head")

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield from self.train(client, client.state["head"], down)
        w = trained["w"]
        client.state["head"] = w.part("head")
        yield Upload({"body": w.without("head"), **{name: trained[name] for name in ("embeddings", "gamma", "beta")}})
        return self.tested(client, w, down["embeddings"], trained.values)

    def train(self, client: Client, head: Params, down: State, epochs: int | None = None) -> Program:
        """Train everything; the valve's conditions and the target embeddings stay those received."""
        received = down["embeddings"]
        return (
            yield Train(
                {"w": join(down["body"], head), **{name: down[name] for name in ("embeddings", "gamma", "beta")}},
                loss=both_routes,
                epochs=epochs,
                context={"received": received, "own": own_classes(client, received), "generic": received.mean(0)},
            )
        )

    def tested(self, client: Client, w: Params, embeddings: Tensor, valve: Any) -> Params:
        """The personalized model: the client's own head on personalized features."""
        own = own_classes(client, embeddings)
        return compose(personal_route, w=w, gamma=valve["gamma"], beta=valve["beta"], own=own)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return self.tested(client, join(down["body"], client.state["head"]), down["embeddings"], down)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains like the others, starting from the initial head."""
        trained = yield from self.train(client, client.state["head"], down, epochs)
        return self.tested(client, trained["w"], down["embeddings"], trained.values)


def own_classes(client: Client, embeddings: Tensor) -> Tensor:
    """The mean of the class embeddings, weighted by the client's class shares, `[width]`."""
    return client.label_counts.to(embeddings.dtype) / client.n_train @ embeddings


def valve(model: Any, parts: Values, z: Tensor, told: Tensor) -> Tensor:
    """ReLU((gamma(told) + 1) z + beta(told)), `[samples, width]`; `told` `[width]` is the condition."""
    gamma, beta = (model(parts[name], told.unsqueeze(0)) for name in ("gamma", "beta"))
    return torch.relu((gamma + 1) * z + beta)


def personal_route(model: Any, parts: Values, x: Tensor) -> Tensor:
    """Logits of the own head on personalized features."""
    w = parts["w"]
    return model.head(w, valve(model, parts, model.features(w, x), parts["own"]))


def both_routes(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """CE of the own head + CE of cosines to embeddings + lam distance to the class embedding + mu/2 squared norms."""
    w, embeddings = values["w"], values["embeddings"]
    z = model.features(w, batch.x)
    logits = model.head(w, valve(model, values, z, ctx.own))
    generic = valve(model, values, z, ctx.generic)
    cosines = functional.normalize(generic, dim=1) @ functional.normalize(embeddings, dim=1).T
    away = (generic - ctx.received[batch.y]).norm(dim=1)
    likelihood = (logits.log_softmax(1) + cosines.log_softmax(1)).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    norms = embeddings.square().sum() + sum(values[name].weights.square().sum() for name in ("gamma", "beta"))
    return batch.mean(ctx.hp.lam * away - likelihood) + ctx.hp.mu / 2 * norms
