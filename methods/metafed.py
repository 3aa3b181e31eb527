"""MetaFed: Chen, Lu, Qin, Wang and Xie 2022, "MetaFed: Federated Learning among Federations with Cyclic Knowledge
Distillation for Personalized Healthcare".

The clients form a ring, and each client's teacher is the client before it. A client that is not good enough yet starts
from the teacher's model; one that is trains its own model on the labels and the teacher's features. At the end every
client learns once more, from the last client of the ring.
"""

from typing import Any

from torch import Tensor, nn

from bench.method import (
    METHODS, Batch, Client, Evaluate, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State,
    Train, Upload, Values, cross_entropy, hp,
)  # fmt: skip

REMAINDER = Feed(samples="remainder")
USEFUL = 0.5  # accuracy at or above which the common model teaches even clients with better models


class Hyper(Hyperparameters):
    """Hyperparameters of MetaFed.

    Attributes:
        threshold: accuracy on the hold-out split at which a client keeps its model and learns the teacher's features.
        lam: weight of the distance to the teacher's features.
        pretrain_epochs: epochs that every client trains alone before its first round.
        personal_epochs: epochs of the last stage, before every test (None: the cell's epochs; 0: no last stage).
    """

    threshold: float = hp(0.6, ge=0, search=Range(0.3, 1.0))
    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    pretrain_epochs: int = hp(30, ge=0, static=True)
    personal_epochs: int | None = hp(None, ge=0, static=True)


@METHODS.register("metafed")
class MetaFed(Method):
    """A ring of clients in which each client learns from the one before it."""

    Hyper = Hyper
    symmetric = False  # the ring is in the order of the clients' numbers, and the hold-out split is drawn
    trains = "pm"
    holdout = 0.2

    def init(self, server: Server) -> None:
        server.state["models"] = {}

    def init_client(self, server: Server, client: Client) -> None:
        client.state |= {"personal": server.initial_model(), "good": None}

    def broadcast(self, server: Server, client: Client) -> State:
        """The last upload of the nearest preceding client in the ring that has sent one.

        A new client gets that of the last client.
        """
        models = server.state["models"]
        ring = sorted(i for i in models if i < client.id) or sorted(i for i in models if i != client.id)
        return {"teacher": models[ring[-1]]} if ring else {}

    def client_round(self, client: Client, down: State) -> Program:
        w = client.state["personal"]
        if client.state["good"] is None:
            if self.hp.pretrain_epochs:
                w = (yield Train({"w": w}, loss=cross_entropy, epochs=self.hp.pretrain_epochs, feed=REMAINDER))["w"]
            client.state["good"] = (yield from self.accuracies([w]))[0] >= self.hp.threshold
        w = yield from self.taught(client, w, down.get("teacher"), self.hp.lam, None)
        client.state["personal"] = w
        good = (yield from self.accuracies([w]))[0] >= self.hp.threshold
        client.state["good"] = client.state["good"] or good
        yield Upload({"model": w})
        return w

    def taught(self, client: Client, w: Params, teacher: Params | None, lam: float, epochs: int | None) -> Program:
        """Train a good client's own model with the teacher's features, and another client from the teacher's model."""
        if teacher is None or not client.state["good"]:
            trained = yield Train({"w": teacher or w}, loss=cross_entropy, epochs=epochs, feed=REMAINDER)
        else:
            context: dict[str, Any] = {"teacher": teacher, "lam": w.weights.new_tensor(lam)}
            trained = yield Train({"w": w}, loss=taught_loss, epochs=epochs, feed=REMAINDER, context=context)
        return trained["w"]

    def accuracies(self, models: list[Params]) -> Program:
        """The models' accuracies on the client's hold-out split."""
        _, found = yield Evaluate(models, "holdout")
        return found.tolist()

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        server.state["models"] = server.state["models"] | {m.client: m["model"] for m in messages}

    def personal(self, server: Server, client: Client, down: State) -> Program:
        """The last stage: the last client's model teaches, with more weight the better it is on the hold-out split."""
        w, models = client.state["personal"], server.state["models"]
        if self.hp.personal_epochs == 0 or not models:
            return w
        common = models[max(models)]
        own, others = yield from self.accuracies([w, common])
        lam = self.hp.lam * strength(own, others)
        return (yield from self.taught(client, w, common, lam, self.hp.personal_epochs))


def strength(own: float, common: float) -> float:
    """Weight of the common model as a teacher: 0 if it is no better than the own model and its accuracy is low."""
    return 0.0 if common <= own and common < USEFUL else 10 ** min(1, 5 * (common - own)) / 10


def taught_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam times the mean squared difference of the features from the teacher's."""
    z = model.features(values["w"], batch.x)
    away = (z - model.features(ctx.teacher, batch.x, stats="frozen")).square().mean(1)
    likelihood = nn.functional.cross_entropy(model.head(values["w"], z), batch.y, reduction="none")
    return batch.mean(likelihood + ctx.lam * away)
