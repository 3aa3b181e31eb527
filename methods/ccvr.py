"""CCVR: Luo, Chen, Hu, Zhang, Liang and Feng 2021 (NeurIPS), "No Fear of Heterogeneity: Classifier Calibration for
Federated Learning with Non-IID Data", Algorithm 1, on top of FedAvg.

Clients describe the features of the averaged body by a mean and a covariance for each class. The server combines these
and retrains the head on samples drawn from the Gaussians. The body is not changed.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Categorical, ClassStats, Client, Exchange, Feed, Hyperparameters, Message, Method, Normal, Params,
    Program, Server, State, Train, Upload, Values, cross_entropy, hp, join, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """`calibration_steps` of the head on the server, each on a batch of `calibration_batch` new draws."""

    calibration_steps: int = hp(500, ge=0, static=True)
    calibration_batch: int = hp(100, ge=1, static=True)

    def degenerate(self) -> list[str]:
        return ["calibration_steps = 0: CCVR is FedAvg"] if self.calibration_steps == 0 else []


@METHODS.register("ccvr")
class CCVR(Method):
    """FedAvg whose generic model has a head trained on features drawn from class Gaussians."""

    Hyper = Hyper
    symmetric = False  # features are drawn; a covariance divides by the number of samples minus one

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"]}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        answer = yield Exchange({"model": trained["w"], "size": client.n_train})
        stats = yield ClassStats(answer["model"], of="features", moments=2)
        yield Upload({"count": stats.count, "sum": stats.sum, "outer": stats.outer})
        return trained["w"]

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        sized = [Message(m.client, m.values, m["size"], m.version) for m in messages]
        server.state["model"] = mean(sized, "model")
        return {m.client: {"model": server.state["model"]} for m in messages}

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        for name in ("count", "sum", "outer"):
            server.state[name] = torch.stack([m[name] for m in messages]).sum(0)

    def generic(self, server: Server) -> Program:
        w: Params = server.state["model"]
        if "count" not in server.state:
            return w
        count = server.state["count"]
        center, root = gaussians(count, server.state["sum"], server.state["outer"])
        seen = tuple((count > 0).to(count.dtype).tolist())
        trained = yield Train(
            {"head": w.part("head")},
            loss=drawn_loss,
            steps=self.hp.calibration_steps,
            feed=Feed("none", self.hp.calibration_batch),
            context={"center": center, "root": root},
            draws={
                "eps": Normal((center.shape[1],)),
                "label": Categorical(seen),
            },
        )
        return join(w.without("head"), trained["head"])


def gaussians(count: Tensor, total: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Means `[classes, d]`, and matrices A `[classes, d, d]`, where A A^T is the unbiased covariance of a class.

    Args:
        count: `[classes]` numbers of samples.
        total: `[classes, d]` sums of their features z.
        outer: `[classes, d, d]` sums of z z^T.
    """
    n = count.view(-1, 1, 1)
    center = total / count.clamp(min=1).unsqueeze(1)
    covariance = (outer - n * center.unsqueeze(2) * center.unsqueeze(1)) / (n - 1).clamp(min=1)
    # Squares that overflowed are set to 0, as LAPACK would raise an error; later checks report that training diverged.
    finite = covariance.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    # A class with fewer samples than features has no Cholesky factor. Eigenvectors have any sign: on the processor, so
    # that a GPU makes the same features of the same draws.
    size, direction = (values.to(finite) for values in torch.linalg.eigh(finite.cpu()))
    return center, direction * size.clamp(min=0).sqrt().unsqueeze(1)


def drawn_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the head on features drawn from the label's Gaussian."""
    label = batch.draws["label"]
    z = ctx.center[label] + torch.einsum("nij,nj->ni", ctx.root[label], batch.draws["eps"])
    return -batch.mean(model.head(values["head"], z).log_softmax(1).gather(1, label.unsqueeze(1)).squeeze(1))
