"""IFCA: Ghosh, Chung, Yin and Ramchandran 2020 (NeurIPS), "An Efficient Framework for Clustered Federated Learning",
Algorithm 1 with model averaging; `shared` layers are those of its weight sharing, averaged over all clients.

Without shared layers it is HypCluster, except for the names of the clusters.
"""

from bench.method import (
    METHODS, Client, Evaluate, Hyperparameters, Message, Method, Program, Server, State, Train, Upload,
    cross_entropy, hp, join, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of IFCA.

    Attributes:
        k: number of clusters.
        shared: layers that all clusters have in common, e.g. `[body]`.
    """

    k: int = hp(3, ge=1, static=True, search=(2, 3, 5))
    shared: tuple[str, ...] = hp((), static=True)

    def degenerate(self) -> list[str]:
        return ["k = 1: IFCA is FedAvg"] if self.k == 1 else []


@METHODS.register("ifca")
class IFCA(Method):
    """Several models, or several heads on one body; each client trains the one with the smallest loss on its data."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state["shared"] = server.initial_model().part(*self.hp.shared)
        for k in range(self.hp.k):
            server.state[f"cluster{k}"] = server.initial_model(draw=k).without(*self.hp.shared)

    def broadcast(self, server: Server, client: Client) -> State:
        return dict(server.state)

    def client_round(self, client: Client, down: State) -> Program:
        best = yield from self.choice(down)
        trained = yield Train({"w": join(down["shared"], down[best])}, loss=cross_entropy)
        w = trained["w"]
        yield Upload({"shared": w.part(*self.hp.shared), best: w.without(*self.hp.shared)})
        return w

    def choice(self, down: State) -> Program:
        """The cluster whose model has the smallest loss on the client's training data; the first one in a tie."""
        names = [f"cluster{k}" for k in range(self.hp.k)]
        losses, _ = yield Evaluate([join(down["shared"], down[name]) for name in names])
        return names[int(losses.argmin())]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        for name in {name for m in messages for name in m.values}:
            server.state[name] = mean(messages, name)

    def personal(self, server: Server, client: Client, down: State) -> Program:
        best = yield from self.choice(down)
        return join(down["shared"], down[best])
