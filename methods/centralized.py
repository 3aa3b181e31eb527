"""Centralized training: one model on the data of all clients at once, which federated learning may not do, and then
fine-tuned by every client. What is lost by leaving the data where they are is measured against it.
"""

from bench.method import METHODS, Client, Feed, Message, Method, Program, Server, State, Train, Upload, cross_entropy
from methods.finetune import FineTune, Hyper


@METHODS.register("centralized")
class Centralized(Method):
    """Each round the server trains for as many epochs of everybody's data as clients would of their own."""

    Hyper = Hyper
    trains = "both"
    bound = True
    symmetric = False  # everybody's samples are shuffled together
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
