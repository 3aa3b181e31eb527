"""FedMD: Li and Wang 2019, "FedMD: Heterogenous Federated Learning via Model Distillation", Algorithm 1.

At first, clients of any architecture learn from a labelled public set and then from their own data. In every round they
send their logits (scores) on some public samples, fit the mean of all clients' scores (digest) and train on their own
data (revisit). Public classes differ from the clients', so they are learned with a separate head, replaced afterwards.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Exchange, Feed, Hyperparameters, Message, Method, Params, Predict, Program, Server, State,
    Train, Values, cross_entropy, hp, join,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedMD.

    Attributes:
        pretrain_epochs: epochs of transfer learning, first on public and then on own data; 0: none.
        subset: number of public samples in a round; all of them if there are fewer.
    """

    pretrain_epochs: int = hp(25, ge=0, static=True)
    subset: int = hp(5000, ge=1, static=True)
    distance: Literal["l1", "mse"] = hp("l1", static=True, search=("l1", "mse"))
    digest_epochs: int = hp(1, ge=0, static=True, search=(1, 2, 5))
    digest_batch: int = hp(256, ge=1, static=True, search=(64, 128, 256))

    def degenerate(self) -> list[str]:
        if self.digest_epochs > 0:
            return []
        return ["digest_epochs = 0: FedMD is Local" + (", after transfer learning" if self.pretrain_epochs else "")]


@METHODS.register("fedmd")
class FedMD(Method):
    """Clients of any architecture fit the mean of all clients' scores on public samples before they train."""

    Hyper = Hyper
    trains = "pm"
    public = True
    mixes_models = True
    everyone = True

    def init(self, server: Server) -> None:
        if self.hp.pretrain_epochs:  # so that a checkpoint knows these architectures before their clients exist
            for client in server.sizes:
                server.initial_model(client, classes=server.public_classes)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)
        if self.hp.pretrain_epochs:  # until the first round
            client.state["public"] = server.initial_model(client.id, classes=server.public_classes)

    def client_round(self, client: Client, down: State) -> Program:
        w = client.state["personal"]
        if "public" in client.state:
            w = yield from self.transfer(w, client.state.pop("public"))
        scores = yield Predict(w, output="logits", subset=self.hp.subset)
        answer = yield Exchange({"scores": scores})
        digested = yield Train(
            {"w": w},
            loss=digest_loss,
            epochs=self.hp.digest_epochs,
            feed=Feed("public", self.hp.digest_batch, subset=self.hp.subset),
            context={"consensus": answer["consensus"]},
        )
        revisited = yield Train({"w": digested["w"]}, loss=cross_entropy)
        client.state["personal"] = revisited["w"]
        return revisited["w"]

    def transfer(self, w: Params, public: Params) -> Program:
        """Train a network on public labels, give it the head of `w`, and train it on the client's own data."""
        learned = yield Train({"w": public}, loss=cross_entropy, epochs=self.hp.pretrain_epochs, feed=Feed("public"))
        start = join(w.part("head"), learned["w"].without("head"))
        transferred = yield Train({"w": start}, loss=cross_entropy, epochs=self.hp.pretrain_epochs)
        return transferred["w"]

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        consensus = torch.stack([m["scores"] for m in messages]).mean(0)
        return {m.client: {"consensus": consensus} for m in messages}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["personal"]
        return w


def digest_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean over public samples and classes of |score - consensus|, or of its square."""
    gap = model(values["w"], batch.x) - ctx.consensus[batch.index]
    if ctx.hp.distance == "mse":
        return batch.mean(gap.square().mean(1))
    # Differences at the level of rounding errors count as 0, as the gradient of |gap| would not be small there.
    rounding = torch.finfo(gap.dtype).eps ** 0.5
    return batch.mean((gap.abs() - rounding).relu().mean(1))
