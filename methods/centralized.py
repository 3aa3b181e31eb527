"""Centralized training: one model is trained on the pooled data of all clients, and then fine-tuned by every client.

Federated learning may not pool data. As a bound, this method shows what is lost by keeping the data local.
"""

from bench.method import METHODS, Client, Feed, Message, Method, Program, Server, State, Train, Upload, cross_entropy
from methods.finetune import FineTune, Hyper


@METHODS.register("centralized")
class Centralized(Method):
    """Each round the server trains on all clients' data, for as many epochs as clients would on their own data."""

    Hyper = Hyper
    trains = "both"
    bound = True
    symmetric = False  # the samples of all clients are shuffled together
    personal, adapt = FineTune.personal, FineTune.adapt

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"]}

    def client_round(self, client: Client, down: State) -> Program:
        yield Upload({})

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        trained = yield Train({"w": server.state["model"]}, loss=cross_entropy, feed=Feed("pooled"))
        server.state["model"] = trained["w"]
