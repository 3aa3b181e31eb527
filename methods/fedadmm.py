"""FedADMM: Gong, Li and Freris 2022 (ICDE), "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to
System Heterogeneity", Algorithm 1.

Consensus by the alternating direction method of multipliers: y_i is the multiplier (price) of client i's distance from
the common model. A client uploads the change of w_i + y_i / rho. The client's state `price` is y_i / rho.
"""

from typing import Any

import torch

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Program, Range, Server, State, Train, Upload, Values,
    cross_entropy, hp, mean,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of FedADMM.

    Attributes:
        rho: weight of the quadratic term of the augmented Lagrangian.
        eta: step size of the server along the mean of the messages.
    """

    rho: float = hp(0.01, gt=0, search=Range(1e-3, 1, log=True))
    eta: float = hp(1.0, gt=0, search=Range(0.1, 1.5))


@METHODS.register("fedadmm")
class FedADMM(Method):
    """Consensus by ADMM: multipliers in the local objectives make the clients agree; the server adds their changes."""

    Hyper = Hyper

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model().weights
        client.state |= {"price": torch.zeros_like(w), "augmented": w}

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"]}

    def client_round(self, client: Client, down: State) -> Program:
        theta, price = down["model"].weights, client.state["price"]
        trained = yield Train({"w": down["model"]}, loss=lagrangian, context={"center": theta - price})
        w = trained["w"]
        price = price + (w.weights - theta)
        augmented = w.weights + price
        yield Upload({"moved": w.with_weights(augmented - client.state["augmented"])})
        client.state |= {"price": price, "augmented": augmented}
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        moved = mean(messages, "moved", equal=True)
        server.state["model"] = moved.with_weights(server.state["model"].weights + self.hp.eta * moved.weights)


def lagrangian(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + <y, w - theta> + rho/2 ||w - theta||^2, up to a constant; `center` is theta - y / rho."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.rho * proximal(values["w"], ctx.center)
