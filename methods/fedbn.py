"""FedBN: Li, Jiang, Zhang, Kamp and Dou 2021 (ICLR), "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", Algorithm 1.

Normalisation layers are found by their type, not by their name.
"""

from bench.method import (
    METHODS, NORMALISATION, Client, Method, Params, Program, Server, State, Train, Upload, cross_entropy, join,
)  # fmt: skip


@METHODS.register("fedbn")
class FedBN(Method):
    """FedAvg of all layers except normalisation layers, whose weights and running statistics stay with the client."""

    trains = "pm"
    mean_of = ("shared",)

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state["shared"] = w.without(*w.spec.of_type(*NORMALISATION))

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        client.state["norm"] = w.part(*w.spec.of_type(*NORMALISATION))

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": join(down["shared"], client.state["norm"])}, loss=cross_entropy)
        own = trained["w"].spec.of_type(*NORMALISATION)
        client.state["norm"] = trained["w"].part(*own)
        yield Upload({"shared": trained["w"].without(*own)})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["shared"], client.state["norm"])
