"""FedBABU: Oh, Kim and Yun 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification"."""

from bench.method import (
    METHODS, SGD, Client, Hyperparameters, Method, Program, Server, State, Train, Upload, cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedBABU; `fine_tune_lr` None: the cell's learning rate."""

    fixed: tuple[str, ...] = hp(("head",), static=True)
    fine_tune_epochs: int = hp(5, ge=0, static=True)
    fine_tune_lr: float | None = hp(None, gt=0, static=True)

    def degenerate(self) -> list[str]:
        found = [] if self.fixed else ["fixed = (): FedBABU trains as FedAvg"]
        return found + (["fine_tune_epochs = 0: all models of FedBABU are one"] if self.fine_tune_epochs == 0 else [])


@METHODS.register("fedbabu")
class FedBABU(Method):
    """Federated training updates only the body, with a fixed random head; then clients fine-tune the whole model."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("body",)

    def init(self, server: Server) -> None:
        server.state["body"] = server.initial_model().without(*self.hp.fixed)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["head"] = server.initial_model().part(*self.hp.fixed)

    def client_round(self, client: Client, down: State) -> Program:
        w = join(down["body"], client.state["head"])
        trained = yield Train({"w": w}, loss=cross_entropy, only={"w": tuple(down["body"].tensors())})
        yield Upload({"body": trained["w"].without(*self.hp.fixed)})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Program:
        return self.adapt(server, client, down, self.hp.fine_tune_epochs)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        w, optimizer = join(down["body"], client.state["head"]), SGD(lr=self.hp.fine_tune_lr)
        trained = yield Train({"w": w}, loss=cross_entropy, epochs=epochs, optimizer=optimizer)
        return trained["w"]
