"""pFedMe: Dinh, Tran and Nguyen 2020, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1.

Every local round draws a batch, approximates the proximal point of the client's copy `w` by K gradient steps and moves
`w` towards it. The number of local rounds R is the cell's `steps` (or its epochs, one local round per batch).
"""

from typing import Any

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp, mean,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of pFedMe; `eta_p` None: the cell's learning rate (the paper's 0.1 is for MNIST)."""

    lam: float = hp(15.0, ge=0, search=Range(0.1, 30, log=True))
    K: int = hp(5, ge=1, static=True)
    eta: float = hp(0.005, gt=0, search=Range(0.005, 1, log=True))
    eta_p: float | None = hp(None, gt=0, static=True)
    beta: float = hp(1.0, ge=0)

    def degenerate(self) -> list[str]:
        frozen = [name for name in ("lam", "beta") if getattr(self, name) == 0]
        return [f"{name} = 0: the generic model of pFedMe never moves" for name in frozen]


@METHODS.register("pfedme")
class PFedMe(Method):
    """The generic model follows the proximal points of the clients' losses, which are the personalized models."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train(
            {"w": down["model"], "theta": down["model"]},
            step=local_round,
            optimizer={"theta": SGD(lr=self.hp.eta_p)},
        )
        client.state["personal"] = trained["theta"]
        w = trained["w"].with_buffers(trained["theta"].buffers)
        yield Upload({"model": w})
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        old, average, beta = server.state["model"], mean(messages, "model"), self.hp.beta
        server.state["model"] = average.with_weights((1 - beta) * old.weights + beta * average.weights)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def local_round(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """A local round: K steps on theta, warm-started, and `w <- w - eta lam (w - theta)`."""
    for _ in range(ctx.hp.K):
        gradients, values = do.gradient(envelope_loss, values, batch, ctx)
        values = do.update(values, gradients)
    w, theta = values["w"], values["theta"]
    return values | {"w": w.with_weights(w.weights - ctx.hp.eta * ctx.hp.lam * (w.weights - theta.weights))}


def envelope_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """The objective of the Moreau envelope: cross-entropy of theta + lam/2 ||theta - w||^2."""
    theta = values["theta"]
    return cross_entropy(model, {"w": theta}, batch, ctx) + ctx.hp.lam * proximal(theta, values["w"].weights)
