"""pFedHN: Shamsian, Navon, Fetaya and Chechik 2021 (ICML), "Personalized Federated Learning using Hypernetworks",
Algorithm 1.

A network on the server (hypernetwork) makes every client's model from an embedding of the client; both are learned. A
client trains the model it receives; the server computes the hypernetwork's gradient from the change in that training.
"""

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Client, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    cross_entropy, hp,
)  # fmt: skip
from methods.hypernetworks import dense, output, pulled_loss


class Hyper(Hyperparameters):
    """Hyperparameters of pFedHN.

    Attributes:
        lr: learning rate of the hypernetwork.
        embedding_lr: learning rate of the embeddings; None: the same as `lr`.
        momentum, weight_decay, clip: for both (`clip` is the largest norm of either gradient).
        embedding: length of an embedding; None: 1 + a quarter of the number of clients.
        hidden: width of the hypernetwork.
        layers: number of its hidden layers; 0: a linear map without bias.
    """

    lr: float = hp(0.01, ge=0, static=True, search=Range(1e-3, 1, log=True))
    embedding_lr: float | None = hp(None, ge=0, static=True)
    momentum: float = hp(0.9, ge=0, lt=1, static=True)
    weight_decay: float = hp(1e-3, ge=0, static=True)
    clip: float = hp(50.0, gt=0, static=True)
    embedding: int | None = hp(None, ge=1, static=True)
    hidden: int = hp(100, ge=1, static=True, search=(50, 100, 200))
    layers: int = hp(3, ge=0, static=True, search=(0, 1, 2, 3))


@METHODS.register("pfedhn")
class PFedHN(Method):
    """A hypernetwork on the server makes the clients' models, and learns from how clients change them in training."""

    Hyper = Hyper
    symmetric = False  # the embeddings are drawn for the clients
    trains = "pm"

    def init(self, server: Server) -> None:
        w, o, clients = server.initial_model(), self.hp, len(server.sizes)
        width = o.embedding or 1 + clients // 4
        with torch.device("meta"):
            module = dense(width, o.hidden, o.layers, w.spec.d)
        drawn = server.rng("embeddings").normal(size=(clients, width))
        server.state |= {
            "hyper": server.build(f"pfedhn({width}->{o.layers}x{o.hidden}->{w.spec.d})", module),
            "embeddings": torch.as_tensor(drawn).to(w.weights),
            "optimizer": None,
        }

    def init_client(self, server: Server, client: Client) -> None:
        client.state["trained"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        """The model that the hypernetwork makes from the client's embedding; for a new client from the mean one."""
        ids, embeddings = sorted(server.sizes), server.state["embeddings"]
        v = embeddings[ids.index(client.id)] if client.id in ids else embeddings.mean(0)
        return {"weights": output(server.state["hyper"], v)}

    def client_round(self, client: Client, down: State) -> Program:
        """Train the received weights; running statistics are the client's own."""
        trained = yield Train({"w": client.state["trained"].with_weights(down["weights"])}, loss=cross_entropy)
        client.state["trained"] = trained["w"]
        yield Upload({"weights": trained["w"].weights})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        ids, embeddings = sorted(server.sizes), server.state["embeddings"]
        at = torch.tensor([ids.index(m.client) for m in messages], device=embeddings.device)
        optimizer = SGD(self.hp.lr, self.hp.momentum, self.hp.weight_decay, nesterov=False, clip=self.hp.clip)
        slow = self.hp.lr if self.hp.embedding_lr is None else self.hp.embedding_lr
        answer = yield Train(
            {"hyper": server.state["hyper"], "embeddings": embeddings},
            loss=pulled_loss,
            steps=1,
            feed=Feed("none", 1),
            optimizer={
                "hyper": optimizer,
                "embeddings": SGD(slow, self.hp.momentum, self.hp.weight_decay, nesterov=False, clip=self.hp.clip),
            },
            optimizer_state=server.state["optimizer"],
            context={
                "pick": torch.eye(len(ids)).to(embeddings)[at],
                "moved": torch.stack([m.base["weights"] - m["weights"] for m in messages]),
            },
        )
        server.state |= {"hyper": answer["hyper"], "embeddings": answer["embeddings"]}
        server.state["optimizer"] = dict(answer.optimizer_state)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["trained"]
        return w.with_weights(down["weights"])

    def relations(self, server: Server) -> dict[str, Tensor]:
        """Cosines of the clients' embeddings."""
        unit = torch.nn.functional.normalize(server.state["embeddings"], dim=1)
        return {"embeddings": unit @ unit.T}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the model of the mean embedding."""
        start = self.personal(server, client, down)
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]
