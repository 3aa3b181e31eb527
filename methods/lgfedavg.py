"""LG-FedAvg: Liang et al. 2020, "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", Algorithm 1.
"""

from bench.method import (
    METHODS, Client, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of LG-FedAvg; `shared` names the layers that are averaged."""

    shared: tuple[str, ...] = hp(("head",), static=True)


@METHODS.register("lgfedavg")
class LGFedAvg(Method):
    """The lower layers (representations) stay with the client, the upper ones are averaged; both train together."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("head",)

    def init(self, server: Server) -> None:
        server.state["head"] = server.initial_model().part(*self.hp.shared)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["body"] = server.initial_model().without(*self.hp.shared)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": join(client.state["body"], down["head"])}, loss=cross_entropy)
        client.state["body"] = trained["w"].without(*self.hp.shared)
        yield Upload({"head": trained["w"].part(*self.hp.shared)})

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(client.state["body"], down["head"])
