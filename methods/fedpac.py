"""FedPAC: Xu, Tong and Huang 2023 (ICLR), "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", Algorithm 1.

Features are pulled to the global prototypes, the mean features of a class over all clients. Every client's head is a
mixture of all heads, with the shares that minimise an estimate of the mixture's error.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.method import (
    METHODS, ClassStats, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    hp, join, mean,
)  # fmt: skip
from methods.fedrep import train_head
from methods.prototypes import merged, pull_loss

Floats = npt.NDArray[np.float64]
DROPPED = 1e-3
"""Shares below it become 0."""


class Hyper(Hyperparameters):
    """Hyperparameters of FedPAC.

    Attributes:
        lam: weight of the mean squared distance between a feature and its class's global prototype.
        head_epochs: epochs of the head on the received body, before the body trains for the cell's epochs.
        collaborate: whether heads are mixed; otherwise each client keeps its own head.
    """

    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    head_epochs: int = hp(1, ge=0, static=True)
    collaborate: bool = hp(True, static=True)

    def degenerate(self) -> list[str]:
        return ["lam = 0 without collaboration: FedPAC is FedRep"] if self.lam == 0 and not self.collaborate else []


@METHODS.register("fedpac")
class FedPAC(Method):
    """FedRep with features pulled to global prototypes; each client's head is a mixture of all heads."""

    Hyper = Hyper
    trains = "pm"
    symmetric = False  # the mixture of heads depends on the clients' sizes, which grow if samples are duplicated

    def init(self, server: Server) -> None:
        w = server.initial_model()
        weight = w.tensors()["head.weight"]
        server.state |= {"body": w.without("head"), "heads": {}}
        server.state["prototypes"] = weight.new_zeros(server.num_classes, weight.shape[1])
        server.state["known"] = weight.new_zeros(server.num_classes)

    def broadcast(self, server: Server, client: Client) -> State:
        """Body, prototypes and the client's head; a client that has no head yet starts with the initial one."""
        state = server.state
        head = state["heads"].get(client.id) or server.initial_model().part("head")
        return {"body": state["body"], "head": head, "prototypes": state["prototypes"], "known": state["known"]}

    def client_round(self, client: Client, down: State) -> Program:
        received = join(down["body"], down["head"])
        before = yield ClassStats(received, of="features", moments=2)
        w = yield from train_head(received, self.hp.head_epochs)
        context = {"prototypes": down["prototypes"], "known": down["known"]}
        trained = yield Train({"w": w}, loss=pull_loss, only={"w": tuple(down["body"].tensors())}, context=context)
        w = trained["w"]
        after = yield ClassStats(w, of="features")
        yield Upload({
            "body": w.without("head"), "head": w.part("head"), "means": after.mean, "count": after.count,
            "share": before.sum / client.n_train, "variance": variance(before.count, before.sum, before.outer),
        })  # fmt: skip
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        state["body"] = mean(messages, "body")
        state["prototypes"], state["known"] = merged(state["prototypes"], state["known"], messages)
        heads = [m["head"] for m in messages]
        mixed = dict(zip([m.client for m in messages], heads, strict=True))
        if self.hp.collaborate:
            weights, buffers = (torch.stack([getattr(h, kind) for h in heads]) for kind in ("weights", "buffers"))
            shares = collaboration([m["variance"] for m in messages], [m["share"] for m in messages])
            rows = zip(mixed, torch.from_numpy(shares).to(weights), strict=True)
            mixed = {client: Params(a @ weights, a.to(buffers) @ buffers, heads[0].spec) for client, a in rows}
        state["heads"] = {**state["heads"], **mixed}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["body"], down["head"])

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """A new client trains a head on the common body."""
        return (yield from train_head(join(down["body"], down["head"]), epochs))


def variance(count: Tensor, sums: Tensor, outer: Tensor) -> Tensor:
    """`[1]`: trace of the covariance of p(y) z over samples, divided by n: the sampling variance of a client's h."""
    n = count.sum()
    squares = outer.diagonal(dim1=-2, dim2=-1).sum()  # of all features
    # of a single sample the difference is 0, and by rounding below it
    return ((squares / n - (sums / n).square().sum()).clamp(min=0) / n).view(1)


def collaboration(variances: list[Tensor], shares: list[Tensor]) -> Floats:
    """Shares `[clients, clients]` of all heads in each client's head; rows sum to 1.

    Row i minimises a' (diag(v) + D_i) a over distributions a, with D_i[j, k] = <h_i - h_j, h_i - h_k>.

    Args:
        variances: v, `[1]` for each client.
        shares: h, `[classes, d]` for each client: the mean feature of each class times the class's share of samples.
    """
    v = np.array([float(one) for one in variances])
    h = torch.stack(shares).flatten(1).double().cpu().numpy()
    rows = [least(np.diag(v) + (own - h) @ (own - h).T) for own in h]
    return np.stack(rows)


def least(q: Floats) -> Floats:
    """The distribution a that minimises a' Q a, for a positive semidefinite Q; small shares are set to 0.

    Up to scale, a is the b >= 0 that minimises b' Q b - 2 sum(b), a least-squares problem in Q's Cholesky factor.
    """
    from scipy.optimize import nnls  # imported here, as cells of other methods run without scipy

    size = max(float(np.trace(q)) / len(q), np.finfo(float).tiny)
    lower = np.linalg.cholesky(q / size + 1e-10 * np.eye(len(q)))
    b = nnls(lower.T, np.linalg.solve(lower, np.ones(len(q))))[0]
    a: Floats = b / b.sum()
    a = np.where(a < DROPPED, 0.0, a)
    return a / a.sum()
