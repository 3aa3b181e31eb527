"""FedGC: Niu and Deng 2022 (AAAI), "Federated Learning for Face Recognition with Gradient Correction".

FedPer whose clients also upload their heads. A client's head chooses only among the client's own classes. The server
corrects all heads with the gradient of a softmax that compares a class's embedding, the mean of its rows, with the rows
of clients that lack the class.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, hp, join, mean,
)  # fmt: skip

ABSENT = -1e6  # added to the logit of a class that the client does not have


class Hyper(Hyperparameters):
    """`correction`: learning rate of the server's step on the heads."""

    correction: float = hp(0.01, ge=0, static=True, search=Range(0.001, 0.1, log=True))


@METHODS.register("fedgc")
class FedGC(Method):
    """A shared body and own heads; the server moves a head's rows away from other clients' classes."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state["body"] = w.without("head")
        server.state["heads"] = [w.part("head")] * len(server.sizes)
        server.state["has"] = w.weights.new_zeros(len(server.sizes), server.num_classes)

    def broadcast(self, server: Server, client: Client) -> State:
        """The body and the client's head; a new client starts with the initial head."""
        ids = sorted(server.sizes)
        known = client.id in server.sizes
        head = server.state["heads"][ids.index(client.id)] if known else server.initial_model().part("head")
        return {"body": server.state["body"], "head": head}

    def client_round(self, client: Client, down: State) -> Program:
        w = join(down["body"], down["head"])
        has = (client.label_counts > 0).to(w.weights.dtype)
        trained = yield Train({"w": w}, loss=own_classes_loss, context={"absent": ABSENT * (1 - has)})
        yield Upload({"body": trained["w"].without("head"), "head": trained["w"].part("head"), "has": has})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        state, ids = server.state, sorted(server.sizes)
        state["body"] = mean(messages, "body")
        heads, has = list(state["heads"]), state["has"].clone()
        for m in messages:
            heads[ids.index(m.client)], has[ids.index(m.client)] = m["head"], m["has"]
        weights = torch.stack([head.tensors()["head.weight"] for head in heads])
        embeddings = torch.einsum("kc,kcd->cd", has / has.sum(0).clamp(min=1), weights)
        stepped = yield Train(
            {"weights": weights},
            loss=correction_loss,
            steps=1 if self.hp.correction else 0,
            feed=Feed("none", 1),
            optimizer=SGD(lr=self.hp.correction, momentum=0.0, weight_decay=0.0, nesterov=False),
            context={"embeddings": embeddings, "has": has},
        )
        state["heads"] = [_with(head, "head.weight", row) for head, row in zip(heads, stepped["weights"], strict=True)]
        state["has"] = has

    def personal(self, server: Server, client: Client, down: State) -> Params:
        tensors = down["head"].tensors()
        if "head.bias" not in tensors:
            return join(down["body"], down["head"])
        absent = ABSENT * (client.label_counts == 0).to(tensors["head.bias"].dtype)
        return join(down["body"], _with(down["head"], "head.bias", tensors["head.bias"] + absent))


def _with(head: Params, name: str, tensor: Tensor) -> Params:
    tensors = {**head.tensors(), name: tensor}
    return head.with_weights(torch.cat([tensors[e.name].flatten() for e in head.spec.params]))


def own_classes_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy over the client's own classes."""
    logits = model(values["w"], batch.x) + ctx.absent
    return -batch.mean(logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))


def correction_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Sum over clients k and their classes c of -log(e^(v_c.v_c) / (e^(v_c.v_c) + sum e^(w_jd.v_c))).

    v_c is a constant, the mean row of the clients that have class c. The inner sum is over the clients j without c and
    their own classes d.
    """
    v, has = ctx.embeddings, ctx.has
    own = v.square().sum(1)
    scores = torch.einsum("jde,ce->cjd", values["weights"], v)
    counted = (1 - has).T.unsqueeze(2) * has.unsqueeze(0)  # [class c, client j without it, class d of j]
    others = torch.where(counted > 0, scores, ABSENT).flatten(1)
    costs = torch.cat([own.unsqueeze(1), others], 1).logsumexp(1) - own
    return (has.sum(0) * costs).sum()
