"""FedProto: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang 2022 (AAAI), "FedProto: Federated Prototype Learning across
Heterogeneous Clients", Algorithm 1.

Clients exchange only class means (prototypes) of features. They may have bodies of different architectures if their
features have the same width.
"""

from typing import Literal

from bench.method import (
    METHODS, ClassStats, Client, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train, Upload,
    hp,
)  # fmt: skip
from methods.prototypes import merged, nearest, pull_loss, require_width


class Hyper(Hyperparameters):
    """Hyperparameters of FedProto.

    Attributes:
        lam: weight of the mean squared distance between a feature and its class's global prototype.
        predict: predict by the nearest global prototype, or by the client's own head.
    """

    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    predict: Literal["prototype", "head"] = hp("prototype", static=True, search=("prototype", "head"))

    def degenerate(self) -> list[str]:
        if self.lam > 0:
            return []
        return ["lam = 0: FedProto is Local" + (", tested by prototypes" if self.predict == "prototype" else "")]


@METHODS.register("fedproto")
class FedProto(Method):
    """Every client trains its own model, whose features are pulled to all clients' mean features of the class."""

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
        trained = yield Train({"w": client.state["personal"]}, loss=pull_loss, context=down)
        client.state["personal"] = trained["w"]
        stats = yield ClassStats(trained["w"], of="features")
        yield Upload({"means": stats.mean, "count": stats.count})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        state["prototypes"], state["known"] = merged(state["prototypes"], state["known"], messages)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["personal"]
        return w if self.hp.predict == "head" else nearest(w, down["prototypes"], down["known"])
