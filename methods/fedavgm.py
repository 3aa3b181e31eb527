"""FedAvgM: Hsu, Qi and Brown 2019, "Measuring the Effects of Non-Identical Data Distribution", section 4.

The server treats the mean update as a gradient and takes a momentum step with it.
"""

import torch

from bench.method import (
    METHODS, Client, Hyperparameters, Message, Method, Program, Range, Server, State, Train, Upload, cross_entropy, hp,
    mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedAvgM; the paper tries beta in {0, 0.7, 0.9, 0.97, 0.99, 0.997}."""

    beta: float = hp(0.9, ge=0, lt=1, search=Range(0.5, 0.99))
    server_lr: float = hp(1.0, gt=0, search=Range(0.1, 1.0, log=True))
    nesterov: bool = False

    def degenerate(self) -> list[str]:
        return ["beta = 0 with server_lr = 1: FedAvgM is FedAvg"] if (self.beta, self.server_lr) == (0, 1) else []


@METHODS.register("fedavgm")
class FedAvgM(Method):
    """FedAvg with momentum on the server."""

    Hyper = Hyper
    mean_of = ("model",)

    def init(self, server: Server) -> None:
        super().init(server)
        server.state["velocity"] = torch.zeros_like(server.state["model"].weights)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        w, average = server.state["model"], mean(messages, "model")
        delta = w.weights - average.weights
        velocity = server.state["velocity"] = self.hp.beta * server.state["velocity"] + delta
        step = delta + self.hp.beta * velocity if self.hp.nesterov else velocity
        server.state["model"] = average.with_weights(w.weights - self.hp.server_lr * step)
