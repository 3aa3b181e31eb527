"""FD (FedDistill): Jeong, Oh, Kim, Park, Bennis and Kim 2018, "Communication-Efficient On-Device Machine Learning:
Federated Distillation and Augmentation under Non-IID Private Data"; the distillation, without the augmentation.

Clients exchange only one mean logit vector per class, so they may have models of different architectures.
"""

from typing import Any

from torch import Tensor

from bench.method import (
    METHODS, Batch, ClassStats, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, hp,
)  # fmt: skip
from methods.prototypes import merged


class Hyper(Hyperparameters):
    """`lam`: weight of the cross-entropy to the mean logits' softmax."""

    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))

    def degenerate(self) -> list[str]:
        return ["lam = 0: FD is Local"] if self.lam == 0 else []


@METHODS.register("fd")
class FD(Method):
    """Every client trains its own model, which also fits the mean logits of all clients for a sample's class."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True

    def init(self, server: Server) -> None:
        like = server.initial_model().weights
        server.state["logits"] = like.new_zeros(server.num_classes, server.num_classes)
        server.state["known"] = like.new_zeros(server.num_classes)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def broadcast(self, server: Server, client: Client) -> State:
        return {"logits": server.state["logits"], "known": server.state["known"]}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=distillation_loss, context=down)
        client.state["personal"] = trained["w"]
        stats = yield ClassStats(trained["w"], of="logits")
        yield Upload({"means": stats.mean, "count": stats.count})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        state["logits"], state["known"] = merged(state["logits"], state["known"], messages, equal=True)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def distillation_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy with the label + lam cross-entropy with the softmax of the label's mean logits, once known."""
    opinion = model(values["w"], batch.x).log_softmax(1)
    likelihood = opinion.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    agreement = (ctx.logits[batch.y].softmax(1) * opinion).sum(1)
    return -batch.mean(likelihood + ctx.hp.lam * ctx.known[batch.y] * agreement)
