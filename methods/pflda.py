"""PFL-DA: Shi and Al Kontar 2023 (Technometrics), "Personalized Federated Learning via Domain Adaptation with an
Application to Distributed 3D Printing".

Own bodies are trained with a head shared by all clients, so that the features of all clients get the same meaning. An
own head, pulled to the shared one, is trained on the own body; both form the personalized model.
"""

from typing import Any

from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    cross_entropy, hp, join,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """`lam`: weight of half the squared distance between the own head and the shared one."""

    lam: float = hp(1.0, ge=0, search=Range(0.01, 10, log=True))


@METHODS.register("pflda")
class PFLDA(Method):
    """In turn, each client trains its own head near the shared one, and its own body together with the shared head."""

    Hyper = Hyper
    trains = "pm"
    mean_of = ("head",)

    def init(self, server: Server) -> None:
        server.state["head"] = server.initial_model().part("head")

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        client.state["body"], client.state["head"] = w.without("head"), w.part("head")

    def client_round(self, client: Client, down: State) -> Program:
        own = yield Train(
            {"w": join(client.state["body"], client.state["head"])},
            loss=near_loss,
            only={"w": ("head",)},
            context={"center": down["head"].weights},
        )
        client.state["head"] = own["w"].part("head")
        shared = yield Train({"w": join(client.state["body"], down["head"])}, loss=cross_entropy)
        client.state["body"] = shared["w"].without("head")
        yield Upload({"head": shared["w"].part("head")})

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(client.state["body"], client.state["head"])


def near_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy, with frozen running statistics of the body, + lam ||head - center||^2 / 2."""
    w = values["w"]
    logits = model.head(w, model.features(w, batch.x, stats="frozen"))
    likelihood = logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return ctx.hp.lam * proximal(w.part("head"), ctx.center) - batch.mean(likelihood)
