"""FedDyn: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1, without its divisions.

With the drift a_i, the sum of (theta_i - theta^t) over the client's rounds, the paper's local gradient is
g_i = -alpha a_i, and its server state is h = -alpha (mean of a_i over all clients). So -h/alpha is the mean drift.
"""

from typing import Any, Literal

import torch

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp, mean,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of FedDyn; alpha as in the authors' CIFAR-10 example."""

    alpha: float = hp(0.01, gt=0, search=Range(1e-3, 1, log=True))
    eval_model: Literal["cloud", "avg_selected", "avg_all"] = hp("cloud", static=True)


@METHODS.register("feddyn")
class FedDyn(Method):
    """A dynamic regulariser changes the local objectives so that their minima agree with the global one's."""

    Hyper = Hyper
    mean_of = ("model",)

    def init(self, server: Server) -> None:
        super().init(server)
        w = server.state["model"]
        server.state["drift"] = torch.zeros_like(w.weights)
        server.state["reported"] = w
        if self.hp.eval_model == "avg_all":
            server.state["last"] = dict.fromkeys(server.sizes, w)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["drift"] = torch.zeros_like(server.initial_model().weights)

    def client_round(self, client: Client, down: State) -> Program:
        start, drift = down["model"].weights, client.state["drift"]
        trained = yield Train({"w": down["model"]}, loss=bent_loss, context={"center": start - drift})
        client.state["drift"] = drift + (trained["w"].weights - start)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        average = mean(messages, "model", equal=True)
        moved = sum(m["model"].weights - m.base["model"].weights for m in messages)
        drift = server.state["drift"] = server.state["drift"] + moved / len(server.sizes)
        server.state["model"] = average.with_weights(average.weights + drift)
        server.state["reported"] = self._reported(server, messages, average)

    def _reported(self, server: Server, messages: list[Message], average: Params) -> Params:
        if self.hp.eval_model == "cloud":
            return server.state["model"]
        if self.hp.eval_model == "avg_selected":
            return average
        server.state["last"] = server.state["last"] | {m.client: m["model"] for m in messages}
        return mean([Message(i, {"model": w}, 1.0, 0) for i, w in server.state["last"].items()], "model")

    def generic(self, server: Server) -> Params:
        return server.state["reported"]


def bent_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + alpha/2 ||w - theta^t + a_i||^2, which has the gradient of the paper's local objective."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.alpha * proximal(values["w"], ctx.center)
