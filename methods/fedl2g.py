"""FedL2G: Zhang, Liu, Hua, Cao and Yang 2024 (arXiv:2410.06490), "FedL2G: Learning to Guide Local Training in
Heterogeneous Federated Learning", Algorithm 1.

The server has one guiding vector per class. Clients pull their outputs for a sample to the vector of its class, and
report in which direction the vectors should move: the gradient of the loss on a held-out quiz set after one step on
the guided loss. Only vectors and their gradients are exchanged. FedL2G-l guides logits, so clients may have models of
any architectures; FedL2G-f guides features, which need one width.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State,
    Train, Upload, Values, cross_entropy, hp,
)  # fmt: skip
from methods.prototypes import require_width


class Hyper(Hyperparameters):
    """Hyperparameters of FedL2G.

    Attributes:
        guide: what the vectors guide: logits (FedL2G-l) or features (FedL2G-f).
        quiz: share of a client's training samples in its quiz set, which its model does not train on.
        warmup: rounds at the beginning in which only the guiding vectors learn.
        server_lr: learning rate of the guiding vectors; None: 0.1 for logits, 100 for features.
        clip: largest Euclidean norm of the mean gradient of all guiding vectors.
    """

    guide: Literal["logits", "features"] = "logits"
    quiz: float = hp(0.1, gt=0, lt=1, static=True)
    warmup: int = hp(50, ge=0, static=True, search=(0, 10, 50))
    server_lr: float | None = hp(None, ge=0, static=True, search=Range(0.01, 100, log=True))
    clip: float = hp(100.0, gt=0, static=True)

    def degenerate(self) -> list[str]:
        return ["server_lr = 0: the guiding vectors of FedL2G stay random"] if self.server_lr == 0 else []


@METHODS.register("fedl2g")
class FedL2G(Method):
    """Every client trains its own model, whose outputs are pulled to learned vectors, one per class."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True
    symmetric = False  # the quiz set is drawn for each client

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.holdout = hyper.quiz

    def init(self, server: Server) -> None:
        head = server.initial_model().tensors()["head.weight"]
        shape = tuple(head.shape) if self.hp.guide == "features" else (server.num_classes, server.num_classes)
        server.state["vectors"] = head.new_tensor(server.rng("guiding vectors").normal(size=shape))

    def init_client(self, server: Server, client: Client) -> None:
        """Raises ValueError if features are guided and do not have the vectors' width."""
        w = server.initial_model(client.id)
        if self.hp.guide == "features":
            require_width("FedL2G with guide: features", w, server)
        client.state["personal"] = w

    def broadcast(self, server: Server, client: Client) -> State:
        return {"vectors": server.state["vectors"], "warm": server.round >= self.hp.warmup}

    def client_round(self, client: Client, down: State) -> Program:
        if down["warm"]:
            client.state["personal"] = yield from self.train(client, down)
        w, vectors = client.state["personal"], down["vectors"]
        learned = yield Train(
            {"w": w, "slopes": torch.zeros_like(vectors)},
            step=quiz_step,
            steps=1,
            feed=Feed("holdout", stream=1),
            side={"study": Feed("remainder", stream=2)},
            optimizer=SGD(momentum=0.0, weight_decay=0.0, clip=math.inf),
            context={"vectors": vectors},
            stats="frozen",
        )
        yield Upload({"slopes": learned["slopes"]})
        return w

    def train(self, client: Client, down: State, epochs: int | None = None) -> Program:
        """Train the client's own model on its study set under the pull to the received vectors."""
        context, study = {"vectors": down["vectors"]}, Feed("remainder")
        w = client.state["personal"]
        trained = yield Train({"w": w}, loss=guided_loss, epochs=epochs, feed=study, context=context)
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        """Move each vector against the mean gradient of the clients whose gradient for it is not 0."""
        slopes = torch.stack([m["slopes"] for m in messages])
        there = slopes.ne(0).any(2, keepdim=True).sum(0)
        slope = slopes.sum(0) / there.clamp(min=1)
        rate = self.hp.server_lr
        if rate is None:
            rate = 0.1 if self.hp.guide == "logits" else 100.0
        clipped = slope * (self.hp.clip / (slope.norm() + 1e-6)).clamp(max=1)
        server.state["vectors"] = server.state["vectors"] - rate * clipped

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains like the others, starting from the initial model."""
        return (yield from self.train(client, down, epochs))


def guided_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + the mean squared distance of what is guided to the vector of a sample's class."""
    z = model.features(values["w"], batch.x)
    logits = model.head(values["w"], z)
    likelihood = logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    vectors = ctx.vectors + values.get("slopes", 0.0)
    of_class = batch.y.unsqueeze(1) == torch.arange(len(vectors), device=z.device)
    target = of_class.to(z.dtype) @ vectors  # its gradient adds up in a fixed order, which that of an index does not
    guided = logits if ctx.hp.guide == "logits" else z
    return batch.mean((guided - target).square().mean(1) - likelihood)


def quiz_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """Find the gradient of the quiz loss, after one step of the model on a study batch, for the guiding vectors.

    The step is w' = w - eta grad_w L(w, v). So the gradient is - eta d/dv [grad_w L(w, v) . grad CE(w')], and no second
    derivative in w is needed. A step of `slopes` from 0 with the same learning rate eta makes it that gradient.
    """
    study = batch.side["study"]
    descent, _ = do.gradient(guided_loss, values, study, ctx)
    after = do.update(values, descent)["w"]
    quiz, _ = do.gradient(cross_entropy, values | {"w": after}, batch, ctx)
    slopes, _ = do.gradient(rise_along, values | {"direction": quiz["w"]}, study, ctx)
    return do.update(values, slopes)


def rise_along(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The derivative of the guided loss along a direction of the weights, as a function of the vectors + `slopes`."""
    w = values["w"]

    def loss(weights: Tensor) -> Tensor:
        return guided_loss(model, values | {"w": w.with_weights(weights)}, batch, ctx)

    rise: Tensor = torch.func.grad(loss)(w.weights.detach()) @ values["direction"]
    return rise
