"""HypCluster: Mansour et al. 2020, "Three Approaches for Personalization with Applications to Federated Learning",
Algorithm 1 (also IFCA, Ghosh et al. 2020, with model averaging).

Clients choose the model with the smallest training loss (the first one in a tie). The means are weighted by training
samples.
"""

from bench.method import (
    METHODS,
    Client,
    Evaluate,
    Hyperparameters,
    Message,
    Method,
    Program,
    Server,
    State,
    Train,
    Upload,
    cross_entropy,
    hp,
    mean,
)


class Hyper(Hyperparameters):
    """Hyperparameters of HypCluster.

    Attributes:
        c: number of clusters, and so of models (`q` in the paper).
    """

    c: int = hp(6, ge=1, static=True, search=(2, 3, 5, 6))

    def degenerate(self) -> list[str]:
        return ["c = 1: HypCluster is FedAvg"] if self.c == 1 else []


@METHODS.register("hypcluster")
class HypCluster(Method):
    """Several generic models; each client trains and uses the one with the smallest loss on its data."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        for k in range(self.hp.c):
            server.state[f"model{k}"] = server.initial_model(draw=k)

    def broadcast(self, server: Server, client: Client) -> State:
        return dict(server.state)

    def client_round(self, client: Client, down: State) -> Program:
        best = yield from self.choice(down)
        trained = yield Train({"w": down[best]}, loss=cross_entropy)
        yield Upload({best: trained["w"]})
        return trained["w"]

    def choice(self, down: State) -> Program:
        """The name of the model with the smallest loss on the client's training data."""
        names = [f"model{k}" for k in range(self.hp.c)]
        losses, _ = yield Evaluate([down[name] for name in names])
        return names[int(losses.argmin())]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        for name in {name for m in messages for name in m.values}:
            server.state[name] = mean(messages, name)

    def personal(self, server: Server, client: Client, down: State) -> Program:
        best = yield from self.choice(down)
        return down[best]
