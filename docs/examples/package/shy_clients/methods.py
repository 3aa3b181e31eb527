"""FedAvg whose clients tell a part of what they learned. Importing this module registers it."""

from bench.method import (
    METHODS,
    Client,
    Hyperparameters,
    Method,
    Program,
    Range,
    State,
    Train,
    Upload,
    cross_entropy,
    hp,
)


class Hyper(Hyperparameters):
    """Hyperparameters of shy FedAvg."""

    share: float = hp(0.5, ge=0, le=1, search=Range(0.1, 1))

    def degenerate(self) -> list[str]:
        return ["share = 0: nothing is learned"] if self.share == 0 else []


@METHODS.register("shy_fedavg")
class ShyFedAvg(Method):
    """FedAvg whose clients send the received model, moved by a share of their update."""

    Hyper = Hyper
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        w = down["model"]
        trained = yield Train({"w": w}, loss=cross_entropy)
        told = w.weights + self.hp.share * (trained["w"].weights - w.weights)
        yield Upload({"model": trained["w"].with_weights(told)})
        return trained["w"]
