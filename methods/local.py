"""Local: every client trains alone; the baseline that personalized methods have to beat."""

from typing import Any

from bench.method import (
    METHODS, Client, Hyperparameters, Method, Params, Program, Server, State, Train, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """`selected_only`: only selected clients train, as in PGFed's code; otherwise all clients train in every round."""

    selected_only: bool = hp(False, static=True)


@METHODS.register("local")
class Local(Method):
    """Every client trains alone, by default in every round: the same budget as in methods with full participation."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.everyone = not hyper.selected_only

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=cross_entropy)
        client.state["personal"] = trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]
