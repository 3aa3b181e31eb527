"""PeFLL: Scott, Zakerinia and Lampert 2024 (ICLR), "PeFLL: Personalized Federated Learning by Learning to Learn",
Algorithm 1.

As in pFedHN a network on the server makes every client's model from an embedding of the client. Here the embedding is
the mean output of a second network on the client's own samples, so a new client needs no training. Clients compute the
gradients of that second network.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bench.method import (
    METHODS, Adam, Batch, Client, Exchange, Feed, Gradient, Hyperparameters, Message, Method, Program, Range,
    Server, State, Train, Upload, Values, cross_entropy, hp,
)  # fmt: skip
from methods.embeddings import embedder_loss, embedding, normalised, one_hot
from methods.hypernetworks import dense, output


class Hyper(Hyperparameters):
    """Hyperparameters of PeFLL.

    Attributes:
        lr, clip: learning rate of Adam, and largest gradient norm for each of the three parts.
        embedding: length of an embedding; None: 1 + a quarter of the number of clients.
        hidden, layers: width and number of the hypernetwork's hidden layers.
        embed_hidden: hidden width of the layers that turn features and label into an embedding.
    """

    lr: float = hp(2e-4, ge=0, static=True, search=Range(1e-5, 1e-2, log=True))
    clip: float = hp(50.0, gt=0, static=True)
    embedding: int | None = hp(None, ge=1, static=True)
    hidden: int = hp(100, ge=1, static=True)
    layers: int = hp(3, ge=1, static=True)
    embed_hidden: int = hp(20, ge=1, static=True)


@METHODS.register("pefll")
class PeFLL(Method):
    """A network makes the clients' models from embeddings, which a second network computes from their samples."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        w, o, classes = server.initial_model(), self.hp, server.num_classes
        width, features = o.embedding or 1 + len(server.sizes) // 4, w.tensors()["head.weight"].shape[1]
        with torch.device("meta"):
            top = nn.Sequential(
                nn.Linear(features + classes, o.embed_hidden), nn.ReLU(), nn.Linear(o.embed_hidden, width)
            )
            hyper = dense(width, o.hidden, o.layers, w.spec.d)
        server.state |= {
            "hyper": server.build(f"pefll({width}->{o.layers}x{o.hidden}->{w.spec.d})", hyper),
            "body": w.without("head"),
            "top": server.build(f"pefll({features}+{classes}->{o.embed_hidden}->{width})", top),
            "scale": None,
            "embedded": {},
            "optimizer": None,
        }

    def init_client(self, server: Server, client: Client) -> None:
        client.state["trained"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {"body": server.state["body"], "top": server.state["top"]}

    def client_round(self, client: Client, down: State) -> Program:
        """Send the embedding, train the model made from it, and backpropagate the slope received for the embedding."""
        v = yield from embedding(client, down)
        given = yield Exchange({"embedding": v})
        trained = yield Train({"w": client.state["trained"].with_weights(given["weights"])}, loss=cross_entropy)
        client.state["trained"] = trained["w"]
        back = yield Exchange({"weights": trained["w"].weights})
        context = {"slope": back["slope"], "labels": one_hot(client, v)}
        slopes, _ = yield Gradient(down, loss=embedder_loss, context=context)
        yield Upload({"body": slopes["body"], "top": slopes["top"]}, weight=1.0)
        return trained["w"]

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        """Reply to an embedding v with the model h(v), and to a trained model with the slope.

        The slope is the gradient of <h(v), theta - theta'> with respect to the embedding.
        """
        state = server.state
        if "embedding" in messages[0].values:
            found = torch.stack([m["embedding"] for m in messages])
            if state["scale"] is None:
                spread = found.std(correction=0)
                state["scale"] = {"mean": found.mean(), "spread": torch.where(spread > 0, spread, 1.0)}
            state["embedded"] = {m.client: normalised(m["embedding"], state["scale"]) for m in messages}
            return {i: {"weights": output(state["hyper"], v)} for i, v in state["embedded"].items()}
        replies = {}
        moved = {}
        for m in messages:
            v = state["embedded"][m.client]
            moved[m.client] = away = output(state["hyper"], v) - m["weights"]
            slope = torch.func.grad(lambda v, away=away: (output(state["hyper"], v) * away).sum())(v)
            replies[m.client] = {"slope": slope / state["scale"]["spread"]}
        state["moved"] = moved
        return replies

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        state = server.state
        names = ("hyper", "body", "top")
        answer = yield Train(
            {name: state[name] for name in names},
            loss=joint_loss,
            steps=1,
            feed=Feed("none", 1),
            optimizer=Adam(self.hp.lr, clip=self.hp.clip),
            optimizer_state=state["optimizer"],
            context={
                "embedded": torch.stack([state["embedded"][m.client] for m in messages]),
                "moved": torch.stack([state["moved"][m.client] for m in messages]),
                **{f"{part}_slope": torch.stack([m[part] for m in messages]).mean(0) for part in ("body", "top")},
            },
        )
        state |= {name: answer[name] for name in names}
        state |= {"optimizer": dict(answer.optimizer_state), "embedded": {}, "moved": {}}

    def personal(self, server: Server, client: Client, down: State) -> Program:
        """The model that the client, which may be new, would be sent now."""
        v = yield from embedding(client, down)
        scale = server.state["scale"]
        weights = output(server.state["hyper"], v if scale is None else normalised(v, scale))
        return client.state["trained"].with_weights(weights)


def joint_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean over clients of <h(v), theta - theta'>, plus terms whose gradients are the embedding network's slopes."""
    models = model.call("forward", values["hyper"], ctx.embedded)
    rest = values["body"].weights @ ctx.body_slope + values["top"].weights @ ctx.top_slope
    return (models * ctx.moved).sum() / len(ctx.moved) + rest
