"""FedProto: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang 2022 (AAAI), "FedProto: Federated Prototype Learning across
Heterogeneous Clients", Algorithm 1, eq. 7 and 8.

Clients exchange only class means (prototypes) of features. They may have bodies of different architectures if their
features have the same width.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, ClassStats, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, hp,
)  # fmt: skip
from methods.prototypes import merged, nearest, pull_loss, require_width


class Hyper(Hyperparameters):
    """Hyperparameters of FedProto.

    Attributes:
        lam: weight of the distances to the global prototypes.
        distance: sum over classes of the distance of the batch's class mean (eq. 8), or mean over samples of the
            distance of each feature; a distance is the mean squared difference.
        average: weigh the prototypes of a class by samples, or all clients that have the class alike.
        predict: predict by the nearest global prototype, or by the client's own head.
    """

    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    distance: Literal["means", "samples"] = "means"
    average: Literal["samples", "clients"] = "samples"
    predict: Literal["prototype", "head"] = hp("prototype", static=True, search=("prototype", "head"))

    def degenerate(self) -> list[str]:
        if self.lam > 0:
            return []
        return ["lam = 0: FedProto is Local" + (", tested by prototypes" if self.predict == "prototype" else "")]


@METHODS.register("fedproto")
class FedProto(Method):
    """Every client trains its own model, whose class means of features are pulled to those of all clients."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True

    def init(self, server: Server) -> None:
        head = server.initial_model().tensors()["head.weight"]
        server.state["prototypes"] = head.new_zeros(server.num_classes, head.shape[1])
        server.state["known"] = head.new_zeros(server.num_classes)

    def init_client(self, server: Server, client: Client) -> None:
        """Raises ValueError if features do not have the prototypes' width, or prototypes cannot replace the head."""
        w = server.initial_model(client.id)
        require_width("FedProto", w, server)
        if self.hp.predict == "prototype":
            nearest(w, server.state["prototypes"], server.state["known"])
        client.state["personal"] = w

    def broadcast(self, server: Server, client: Client) -> State:
        return {"prototypes": server.state["prototypes"], "known": server.state["known"]}

    def client_round(self, client: Client, down: State) -> Program:
        client.state["personal"] = trained = yield from self.train(client, down)
        stats = yield ClassStats(trained, of="features")
        yield Upload({"means": stats.mean, "count": stats.count})
        return trained

    def train(self, client: Client, down: State, epochs: int | None = None) -> Program:
        """Train the client's own model under the pull to the received prototypes."""
        loss = means_loss if self.hp.distance == "means" else pull_loss
        trained = yield Train({"w": client.state["personal"]}, loss=loss, epochs=epochs, context=down)
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        equal = self.hp.average == "clients"
        state["prototypes"], state["known"] = merged(state["prototypes"], state["known"], messages, equal=equal)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return self.tested(client.state["personal"], down)

    def tested(self, w: Params, down: State) -> Params:
        """The model with its own head or with the nearest prototype in its place."""
        return w if self.hp.predict == "head" else nearest(w, down["prototypes"], down["known"])

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains like the others, starting from the initial model."""
        return self.tested((yield from self.train(client, down, epochs)), down)


def means_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam times the sum over the batch's classes of the distance of their mean to the prototype."""
    w = values["w"]
    z = model.features(w, batch.x)
    likelihood = model.head(w, z).log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    of_class = (batch.y.unsqueeze(1) == torch.arange(len(ctx.known), device=z.device)) * batch.weight.unsqueeze(1)
    count = of_class.sum(0)
    means = of_class.T @ z / count.clamp(min=1).unsqueeze(1)
    distance = (means - ctx.prototypes).square().mean(1)
    pull = torch.where((count > 0) & (ctx.known > 0), distance, 0.0).sum()
    return ctx.hp.lam * pull - batch.mean(likelihood)
