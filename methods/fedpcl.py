"""FedPCL: Tan, Long, Ma, Liu, Zhou and Jiang 2022 (NeurIPS), "Federated Learning from Pre-Trained Models: A Contrastive
Learning Approach", Algorithm 1, without pre-trained backbones: the whole bodies are trained.

Clients exchange only class means (prototypes) of normalised features. A contrastive loss trains the features to be
closest to the prototype of their class, among the global prototypes and among those of every client. Heads are not
used. Bodies may have any architectures whose features have the same width.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, ClassStats, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, hp,
)  # fmt: skip
from methods.prototypes import merged, most_similar, require_width


class Hyper(Hyperparameters):
    """`tau`: temperature of the contrastive loss."""

    tau: float = hp(0.07, gt=0, search=Range(0.05, 1, log=True))


@METHODS.register("fedpcl")
class FedPCL(Method):
    """Every client trains its own body so that features are near all clients' prototypes of their class."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True

    def init(self, server: Server) -> None:
        head, classes = server.initial_model().tensors()["head.weight"], server.num_classes
        server.state["prototypes"] = head.new_zeros(classes, head.shape[1])
        server.state["known"] = head.new_zeros(classes)
        server.state["sent"] = {}

    def init_client(self, server: Server, client: Client) -> None:
        """Raises ValueError if features do not have the prototypes' width, or prototypes cannot replace the head."""
        w = server.initial_model(client.id)
        require_width("FedPCL", w, server)
        own, known = torch.zeros_like(server.state["prototypes"]), torch.zeros_like(server.state["known"])
        most_similar(w, own, known)
        client.state.update(personal=w, own=own, known=known)

    def broadcast(self, server: Server, client: Client) -> State:
        return {name: server.state[name] for name in ("prototypes", "known", "sent")}

    def client_round(self, client: Client, down: State) -> Program:
        w = client.state["personal"]
        if down["sent"]:  # in the first round there is nothing to learn from
            trained = yield Train({"w": w}, loss=contrast_loss, context=contrast(down))
            w = client.state["personal"] = trained["w"]
        stats = yield ClassStats(w, of="directions")
        client.state["own"], client.state["known"] = stats.mean, (stats.count > 0).to(stats.mean.dtype)
        yield Upload({"means": stats.mean, "count": stats.count})
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        state["prototypes"], state["known"] = merged(state["prototypes"], state["known"], messages, equal=True)
        latest = {str(m.client): {"means": m["means"], "count": m["count"]} for m in messages}
        state["sent"] = {**state["sent"], **latest}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return most_similar(client.state["personal"], client.state["own"], client.state["known"])


def contrast(down: State) -> State:
    """All sets of prototypes, `[1 + clients, classes, d]`, the global one first, and their weights.

    Where a client has no prototype of a class, the global one replaces it.
    """
    sets = [down["prototypes"]]
    for sent in down["sent"].values():
        sets.append(torch.where(sent["count"].unsqueeze(1) > 0, sent["means"], down["prototypes"]))
    weight = sets[0].new_full((len(sets),), 1 / (len(sets) - 1))
    return {
        "sets": torch.stack(sets),
        "weight": weight.index_fill(0, weight.new_zeros(1, dtype=torch.long), 1.0),
        "known": down["known"],
    }


def contrast_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Weighted sum over sets of prototypes of CE(softmax(z . prototypes / tau), class); z is the normalised feature.

    Classes without any prototype are left out.
    """
    z = torch.nn.functional.normalize(model.features(values["w"], batch.x), dim=1)
    scores = torch.einsum("nd,kcd->nkc", z, ctx.sets) / ctx.hp.tau
    scores = torch.where(ctx.known > 0, scores, -(torch.finfo(z.dtype).max ** 0.5))
    at = batch.y.view(-1, 1, 1).expand(-1, len(ctx.sets), 1)
    return -batch.mean(scores.log_softmax(2).gather(2, at).squeeze(2) @ ctx.weight)
