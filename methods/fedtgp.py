"""FedTGP: Zhang, Liu, Hua and Cao 2024 (AAAI), "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning", Algorithm 1.

FedProto, but the server does not average the clients' class means. Instead it trains one prototype per class that is
near the clients' means of this class and, by a margin, farther from those of other classes. Bodies may have any
architectures whose features have the same width.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.method import (
    METHODS, SGD, Batch, ClassStats, Client, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server,
    State, Train, Upload, Values, hp,
)  # fmt: skip
from methods.prototypes import merged, nearest, pull_loss, require_width


class Hyper(Hyperparameters):
    """Hyperparameters of FedTGP.

    Attributes:
        lam: weight of the mean squared distance between a feature and its class's global prototype.
        server_steps: training steps of the server in a round, each on all class means that it received.
        server_lr: learning rate of the server; None: the cell's learning rate.
        tau: largest margin.
        predict: predict by the nearest global prototype, or by the client's own head.
    """

    lam: float = hp(10.0, ge=0, search=Range(0.1, 10, log=True))
    server_steps: int = hp(100, ge=0, static=True)
    server_lr: float | None = hp(None, gt=0, static=True)
    tau: float = hp(100.0, ge=0, static=True)
    predict: Literal["prototype", "head"] = hp("prototype", static=True, search=("prototype", "head"))

    def degenerate(self) -> list[str]:
        if self.lam > 0:
            return []
        return ["lam = 0: FedTGP is Local" + (", tested by prototypes" if self.predict == "prototype" else "")]


class Prototypes(nn.Module):
    """The trainable prototypes `[classes, width]`: one embedding per class, passed through two layers."""

    rules: ClassVar[dict[type[nn.Module], Any]] = {
        nn.Embedding: lambda layer, name, rng: rng.normal(size=layer.weight.shape)
    }

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        """All prototypes, `[classes, width]`."""
        out: Tensor = self.layers(self.embedding.weight)
        return out


@METHODS.register("fedtgp")
class FedTGP(Method):
    """FedProto whose server trains the prototypes so that those of different classes are well separated."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True

    def init(self, server: Server) -> None:
        head, classes = server.initial_model().tensors()["head.weight"], server.num_classes
        width = head.shape[1]
        with torch.device("meta"):
            module = Prototypes(classes, width)
        server.state["net"] = server.build(f"fedtgp({classes}x{width})", module)
        server.state["prototypes"] = head.new_zeros(classes, width)
        server.state["known"] = head.new_zeros(classes)

    def init_client(self, server: Server, client: Client) -> None:
        """Raises ValueError if features do not have the prototypes' width, or prototypes cannot replace the head."""
        w = server.initial_model(client.id)
        require_width("FedTGP", w, server)
        if self.hp.predict == "prototype":
            nearest(w, server.state["prototypes"], server.state["known"])
        client.state["personal"] = w

    def broadcast(self, server: Server, client: Client) -> State:
        return {"prototypes": server.state["prototypes"], "known": server.state["known"]}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=pull_loss, context=down)
        client.state["personal"] = trained["w"]
        stats = yield ClassStats(trained["w"], of="features")
        yield Upload({"means": stats.mean, "count": stats.count})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        state = server.state
        centers, seen = merged(state["prototypes"], torch.zeros_like(state["known"]), messages, equal=True)
        there = (torch.stack([m["count"] for m in messages]) > 0).to(centers.dtype)
        trained = yield Train(
            {"net": state["net"]},
            loss=contrast_loss,
            steps=self.hp.server_steps,
            feed=Feed("none", 1),
            optimizer=SGD(lr=self.hp.server_lr, momentum=0.0, weight_decay=0.0, nesterov=False),
            context={
                "means": torch.stack([m["means"] for m in messages]),
                "share": there / there.sum(),
                "margin": margin(centers[seen > 0]).clamp(max=self.hp.tau),
            },
        )
        state["net"], state["known"] = trained["net"], torch.maximum(state["known"], seen)
        state["prototypes"] = functional_call(state["net"].spec.module, state["net"].tensors(), ())

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return self.tested(client.state["personal"], down)

    def tested(self, w: Params, down: State) -> Params:
        """The model with its own head or with the nearest prototype in its place."""
        return w if self.hp.predict == "head" else nearest(w, down["prototypes"], down["known"])

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains like the others, starting from the initial model."""
        trained = yield Train({"w": client.state["personal"]}, loss=pull_loss, epochs=epochs, context=down)
        return self.tested(trained["w"], down)


def margin(centers: Tensor) -> Tensor:
    """The largest distance of a class to its nearest other class; 0 for a single class."""
    if len(centers) < 2:
        return centers.new_zeros(())
    apart = (centers.unsqueeze(1) - centers).norm(dim=2)
    return apart.fill_diagonal_(torch.inf).amin(1).amax()


def contrast_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean over class means of CE(softmax(-distances to prototypes), class); a margin is added to the own distance."""
    prototypes = model.call("forward", values["net"])
    squared = (ctx.means.unsqueeze(2) - prototypes).square().sum(3)  # [clients, its class, class of the prototype]
    own = torch.eye(len(prototypes), dtype=squared.dtype, device=squared.device)
    distance = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt() + ctx.margin * own
    return -(ctx.share * (-distance).log_softmax(2).diagonal(dim1=1, dim2=2)).sum()
