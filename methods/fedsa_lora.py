"""FedSA-LoRA: Guo, Zeng, Wang, Fan, Wang and Qu 2025 (ICLR), "Selective Aggregation for Low-Rank Adaptation in
Federated Learning".

Both of LoRA's matrices are trained, but only A, which learns what all clients need, is sent to the server and averaged;
B stays with the client.
"""

from bench.method import (
    METHODS, Client, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedSA-LoRA.

    Attributes:
        personal: what stays with the client beside B.
    """

    personal: tuple[str, ...] = hp(("head",), static=True)


@METHODS.register("fedsa_lora")
class FedSALoRA(Method):
    """LoRA whose A is averaged; B and the head are the client's own."""

    Hyper = Hyper
    adapter = "lora"
    trains = "pm"
    mean_of = ("shared",)

    def init(self, server: Server) -> None:
        server.state["shared"] = server.initial_model().without(*self.own(server.initial_model()))

    def init_client(self, server: Server, client: Client) -> None:
        client.state["own"] = server.initial_model().part(*self.own(server.initial_model()))

    def own(self, w: Params) -> tuple[str, ...]:
        """Names of what stays with the client."""
        return (*w.spec.named("lora_b"), *self.hp.personal)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": join(down["shared"], client.state["own"])}, loss=cross_entropy)
        client.state["own"] = trained["w"].part(*self.own(trained["w"]))
        yield Upload({"shared": trained["w"].without(*self.own(trained["w"]))})

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["shared"], client.state["own"])
