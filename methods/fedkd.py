"""FedKD: Wu, Wu, Lyu, Huang and Xie 2022 (Nature Communications), "Communication-efficient federated learning via
knowledge distillation", Algorithm 1.

Every client trains its own model, the teacher, together with a copy of the shared student. Each learns from the other,
with a weight that grows as their losses fall. Clients and server exchange only updates of the student, as factors of
low rank, and its running statistics. Teachers may have any architectures; the student has that of the cell.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Message, Method, Params, Program, Server, State, Train, Upload, Values, hp,
    mean,
)  # fmt: skip
from methods.low_rank import compressed, restored


class Hyper(Hyperparameters):
    """Hyperparameters of FedKD.

    Attributes:
        start, end: kept share of the squared singular values, in the first round and after `rounds` rounds.
    """

    start: float = hp(0.95, gt=0, le=1)
    end: float = hp(0.98, gt=0, le=1)
    rounds: int = hp(100, ge=1, static=True)


@METHODS.register("fedkd")
class FedKD(Method):
    """Every client's own teacher and a shared student teach each other; only low-rank updates are sent."""

    Hyper = Hyper
    trains = "both"
    mixes_models = True
    everyone = True  # a client that misses a round would miss the student's update

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()
        server.state["update"] = []

    def init_client(self, server: Server, client: Client) -> None:
        teacher, student = server.initial_model(client.id), server.initial_model()
        own, shared = (w.tensors()["head.weight"] for w in (teacher, student))
        client.state["personal"], client.state["student"] = teacher, student
        client.state["map"] = torch.eye(own.shape[1], shared.shape[1], dtype=own.dtype, device=own.device)

    def broadcast(self, server: Server, client: Client) -> State:
        return {
            "update": server.state["update"],
            "statistics": statistics(server.state["model"]),
            "energy": self.energy(server.round),
        }

    def energy(self, round: int) -> float:
        """The share of the squared singular values that is kept in a round."""
        return self.hp.start + (self.hp.end - self.hp.start) * min(1.0, round / self.hp.rounds)

    def client_round(self, client: Client, down: State) -> Program:
        student = restored(client.state["student"], down["update"]).with_buffers(down["statistics"].buffers)
        trained = yield Train(
            {"teacher": client.state["personal"], "student": student, "map": client.state["map"]}, loss=mutual_loss
        )
        client.state.update(personal=trained["teacher"], student=student, map=trained["map"])
        new = trained["student"]
        yield Upload({"update": compressed(student, new, down["energy"]), "statistics": statistics(new)})
        return trained["teacher"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        old: Params = server.state["model"]
        whole = sum(m.weight for m in messages)
        weights = torch.zeros_like(old.weights)
        for m in messages:
            weights.add_(restored(old, m["update"]).weights, alpha=m.weight / whole)
        server.state["update"] = compressed(old, old.with_weights(weights), self.energy(server.round))
        new = restored(old, server.state["update"])
        server.state["model"] = new.with_buffers(mean(messages, "statistics").buffers)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def statistics(w: Params) -> Params:
    """Only the running statistics, which are sent uncompressed."""
    return w.without(*(entry.name for entry in w.spec.params))


def mutual_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """For both models: CE + (KL(other || self) + MSE of teacher's and mapped student's features) / (sum of both CEs).

    Each model's terms train only that model; the other one is a constant in them. The map is trained with the student.
    """
    z, logits, task = {}, {}, {}
    for name in ("teacher", "student"):
        z[name] = model.features(values[name], batch.x)
        logits[name] = model.head(values[name], z[name]).log_softmax(1)
        task[name] = -batch.mean(logits[name].gather(1, batch.y.unsqueeze(1)).squeeze(1))
    total: Any = 0
    for name, other in (("teacher", "student"), ("student", "teacher")):
        target = logits[other].detach()
        divergence = batch.mean((target.exp() * (target - logits[name])).sum(1))
        if name == "teacher":
            gap = z["teacher"] - (z["student"] @ values["map"].T).detach()
        else:
            gap = z["teacher"].detach() - z["student"] @ values["map"].T
        weight = task[name] + task[other].detach()
        total = total + task[name] + (divergence + batch.mean(gap.square().mean(1))) / weight
    return total
