"""pFedLA: Ma, Zhang, Guo and Xu 2022 (CVPR), "Layer-wised Model Aggregation for Personalized Federated Learning".

Every client starts from its own mean of all clients' models, with different shares for each layer. For each client, a
network on the server computes the shares from an embedding, and learns from the change in the client's training.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench.method import (
    METHODS, SGD, Batch, Client, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp,
)  # fmt: skip
from methods.hypernetworks import output
from methods.layers import layers


class Hyper(Hyperparameters):
    """Hyperparameters of pFedLA.

    Attributes:
        lr: learning rate of the hypernetworks and the embeddings.
        embedding, hidden: length of an embedding, and width of the hypernetworks' three hidden layers.
    """

    lr: float = hp(5e-3, ge=0, static=True, search=Range(1e-3, 1, log=True))
    embedding: int = hp(100, ge=1, static=True)
    hidden: int = hp(100, ge=1, static=True)


class Shares(nn.Linear):
    """The last layer; its initial weights are not negative, so that no share starts at 0."""


class Mixer(nn.Sequential):
    """Maps an embedding to a non-negative number for each layer of the model and each client."""

    rules: ClassVar[dict[Any, Any]] = {
        Shares: lambda layer, name, rng: rng.uniform(0, float(name == "weight"), layer.get_parameter(name).shape)
    }

    def __init__(self, embedding: int, hidden: int, outputs: int) -> None:
        stack: list[nn.Module] = []
        for inputs in (embedding, hidden, hidden):
            stack += [nn.Linear(inputs, hidden), nn.ReLU()]
        super().__init__(*stack, Shares(hidden, outputs), nn.ReLU())


@METHODS.register("pfedla")
class PFedLA(Method):
    """Every client starts from its own mean of all models in each layer; networks on the server learn the shares."""

    Hyper = Hyper
    symmetric = False  # the embeddings are drawn for the clients
    trains = "pm"

    def init(self, server: Server) -> None:
        w, o, clients = server.initial_model(), self.hp, len(server.sizes)
        outputs = len(layers(w)) * clients
        with torch.device("meta"):
            module = Mixer(o.embedding, o.hidden, outputs)
        drawn = server.rng("embeddings").normal(size=(clients, o.embedding))
        server.state |= {
            "models": w.weights.repeat(clients, 1),
            "nets": [server.build(f"pfedla({o.embedding}->{o.hidden}->{outputs})", module)] * clients,
            "embeddings": torch.as_tensor(drawn).to(w.weights),
            "runs": layers(w),
        }

    def init_client(self, server: Server, client: Client) -> None:
        client.state["trained"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        """The client's own mean of all models; for a new client the plain mean."""
        ids, models = sorted(server.sizes), server.state["models"]
        if client.id not in ids:
            return {"weights": models.mean(0)}
        shares = self._shares(server)[ids.index(client.id)]
        runs = server.state["runs"]
        return {"weights": torch.cat([a @ models[:, i:j] for a, (i, j) in zip(shares, runs, strict=True)])}

    def _shares(self, server: Server) -> Tensor:
        """The shares of all clients in each layer of each client's model, `[clients, layers, clients]`."""
        pairs = zip(server.state["nets"], server.state["embeddings"], strict=True)
        return torch.stack([normalised(output(net, v), len(server.sizes)) for net, v in pairs])

    def client_round(self, client: Client, down: State) -> Program:
        """Train the received weights; running statistics are the client's own."""
        trained = yield Train({"w": client.state["trained"].with_weights(down["weights"])}, loss=cross_entropy)
        client.state["trained"] = trained["w"]
        yield Upload({"weights": trained["w"].weights})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        ids, models, runs = sorted(server.sizes), server.state["models"], server.state["runs"]
        nets, embeddings, new = list(server.state["nets"]), server.state["embeddings"].clone(), models.clone()
        for m in messages:
            i, moved = ids.index(m.client), m.base["weights"] - m["weights"]
            answer = yield Train(
                {"net": nets[i], "embedding": embeddings[i]},
                loss=pulled_loss,
                steps=1,
                feed=Feed("none", 1),
                optimizer=SGD(self.hp.lr, momentum=0.0, weight_decay=0.0, nesterov=False, clip=float("inf")),
                context={"slope": torch.stack([models[:, a:b] @ moved[a:b] for a, b in runs])},
            )
            nets[i], embeddings[i], new[i] = answer["net"], answer["embedding"], m["weights"]
        server.state |= {"nets": nets, "embeddings": embeddings, "models": new}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["trained"]
        return w.with_weights(down["weights"])

    def relations(self, server: Server) -> dict[str, Tensor]:
        """Row i holds the shares in the model of client i, averaged over layers."""
        return {"shares": self._shares(server).mean(1)}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client starts from the mean of all models."""
        start = self.personal(server, client, down)
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def normalised(out: Tensor, clients: int) -> Tensor:
    """Turn `[layers * clients]` numbers into rows `[layers, clients]` that sum to 1; equal shares where all are 0."""
    rows = out.view(-1, clients)
    whole = rows.sum(1, keepdim=True)
    return torch.where(whole > 0, rows / whole.clamp(min=torch.finfo(out.dtype).tiny), 1 / clients)


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """<theta, theta - theta'>, where the first theta, the mean that was sent, is a function of the shares.

    `ctx.slope` `[layers, clients]` holds each model's product with theta - theta', layer by layer.
    """
    out = model.call("forward", values["net"], values["embedding"])
    return (normalised(out, ctx.slope.shape[1]) * ctx.slope).sum()
