"""FedPer: Arivazhagan et al. 2019, "Federated Learning with Personalization Layers", Algorithms 1 and 2."""

from bench.method import (
    METHODS, Client, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedPer."""

    personal: tuple[str, ...] = hp(("head",), static=True)


@METHODS.register("fedper")
class FedPer(Method):
    """The base layers are averaged, the personalization layers stay with the client; both train together."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("body",)

    def init(self, server: Server) -> None:
        server.state["body"] = server.initial_model().without(*self.hp.personal)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["head"] = server.initial_model().part(*self.hp.personal)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": join(down["body"], client.state["head"])}, loss=cross_entropy)
        client.state["head"] = trained["w"].part(*self.hp.personal)
        yield Upload({"body": trained["w"].without(*self.hp.personal)})

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["body"], client.state["head"])
