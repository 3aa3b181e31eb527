"""DS-FL: Itahara et al. 2020, "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", Algorithm 1, with entropy reduction aggregation (ERA).

In a round every selected client trains on its own data, sends its predicted probabilities on the public set, and
distils the server's answer; the server distils it too. The paper's open set is the whole public set in every round.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.method import (
    METHODS, Batch, Client, Exchange, Feed, Hyperparameters, Message, Method, Params, Predict, Program, Range,
    Server, State, Train, Values, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of DS-FL."""

    aggregation: Literal["era", "sa"] = hp("era", static=True)
    temperature: float = hp(0.1, gt=0, search=Range(0.01, 1, log=True))
    distil_epochs: int = hp(5, ge=0, static=True)
    distil_batch: int = hp(100, ge=1, static=True)

    def degenerate(self) -> list[str]:
        return ["distil_epochs = 0: the clients of DS-FL are those of Local"] if self.distil_epochs == 0 else []


@METHODS.register("dsfl")
class DSFL(Method):
    """Clients of any architecture and a server model learn from the sharpened mean of the clients' predictions."""

    Hyper = Hyper
    trains = "both"
    public = True
    mixes_models = True

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=cross_entropy)
        probabilities = yield Predict(trained["w"])
        answer = yield Exchange({"probabilities": probabilities})
        distilled = yield self.distil(trained["w"], answer["target"])
        client.state["personal"] = distilled["w"]
        return trained["w"]

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        average = torch.stack([m["probabilities"] for m in messages]).mean(0)
        target = sharpened(average, self.hp.temperature) if self.hp.aggregation == "era" else average
        server.state["target"] = target
        return {m.client: {"target": target} for m in messages}

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        distilled = yield self.distil(server.state["model"], server.state.pop("target"))
        server.state["model"] = distilled["w"]

    def distil(self, w: Params, target: Tensor) -> Train:
        """Fit a model to `target`, probabilities `[public samples, classes]`."""
        return Train(
            {"w": w},
            loss=soft_cross_entropy,
            epochs=self.hp.distil_epochs,
            feed=Feed("public", self.hp.distil_batch),
            context={"target": target},
        )

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["personal"]
        return w


def sharpened(average: Tensor, temperature: float) -> Tensor:
    """Entropy reduction aggregation: a softmax over the averaged probabilities, `[samples, classes]`."""
    return (average / temperature).softmax(1)


def soft_cross_entropy(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy between the target's rows and the model's probabilities."""
    scores = model(values["w"], batch.x)
    return batch.mean(nn.functional.cross_entropy(scores, ctx.target[batch.index], reduction="none"))
