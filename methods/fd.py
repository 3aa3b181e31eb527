"""FD (FedDistill): Jeong, Oh, Kim, Park, Bennis and Kim 2018, "Communication-Efficient On-Device Machine Learning:
Federated Distillation and Augmentation under Non-IID Private Data", Algorithm 1, without the augmentation.

Clients exchange only one mean output per class, so they may have models of different architectures. A client's target
for a class is the mean over the other clients.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FD.

    Attributes:
        lam: weight of the cross-entropy to the target of a sample's class (gamma in the paper).
        outputs: what is averaged: probabilities, or logits, whose mean's softmax is then the target.
        teachers: whose means a client's target averages: the others', or all clients', its own included.
    """

    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    outputs: Literal["probabilities", "logits"] = "probabilities"
    teachers: Literal["others", "all"] = "others"

    def degenerate(self) -> list[str]:
        return ["lam = 0: FD is Local"] if self.lam == 0 else []


@METHODS.register("fd")
class FD(Method):
    """Every client trains its own model, which also fits the other clients' mean output for a sample's class."""

    Hyper = Hyper
    trains = "pm"
    mixes_models = True

    def init(self, server: Server) -> None:
        """`sum` and each client's entry of `sent`: `[classes, classes + 1]`, mean outputs and whether there is one."""
        weights = server.initial_model().weights
        server.state |= {"sent": {}, "sum": weights.new_zeros(server.num_classes, server.num_classes + 1)}

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def broadcast(self, server: Server, client: Client) -> State:
        """The mean over the teachers for each class, and for which classes there is one."""
        state = server.state
        total = state["sum"] - state["sent"].get(client.id, 0.0) if self.hp.teachers == "others" else state["sum"]
        means, senders = total.split([len(total), 1], dim=1)
        known = (senders > 0).to(means.dtype)
        return {"target": known * means / senders.clamp(min=1), "known": known.squeeze(1)}

    def client_round(self, client: Client, down: State) -> Program:
        nothing = down["target"].new_zeros(len(down["known"]), len(down["known"]) + 1)
        target = down["target"].softmax(1) if self.hp.outputs == "logits" else down["target"]
        trained = yield Train(
            {"w": client.state["personal"], "seen": nothing, "batch": nothing},
            step=step,
            optimizer={"w": SGD(), "batch": SGD()},
            context={"target": target, "known": down["known"]},
        )
        client.state["personal"] = trained["w"]
        sums, count = trained["seen"].split([len(nothing), 1], dim=1)
        yield Upload({"means": sums / count.clamp(min=1), "seen": (count.squeeze(1) > 0).to(count.dtype)})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        """Sum up the round's means; a class that no client of the round has seen keeps its former ones."""
        state, nothing = server.state, torch.zeros_like(server.state["sum"])
        fresh = {m.client: torch.cat([m["means"], m["seen"].unsqueeze(1)], dim=1) for m in messages}
        renewed = torch.stack(list(fresh.values()))[:, :, -1:].amax(0) > 0
        state["sent"] = {
            i: torch.where(renewed, fresh.get(i, nothing), state["sent"].get(i, nothing))
            for i in sorted({*state["sent"], *fresh})
        }
        state["sum"] = torch.stack(list(state["sent"].values())).sum(0)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def distillation_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy with the label + lam cross-entropy with the label's target, once there is one.

    The gradient with respect to `batch` holds the batch's sums of outputs by class, and its samples of each class.
    """
    logits = model(values["w"], batch.x)
    opinion = logits.log_softmax(1)
    likelihood = opinion.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    agreement = (ctx.target[batch.y] * opinion).sum(1)
    output = logits if ctx.hp.outputs == "logits" else opinion.exp()
    of_class = batch.y.unsqueeze(1) == torch.arange(len(ctx.target), device=batch.y.device)
    rows = torch.cat([output, torch.ones_like(output[:, :1])], dim=1) * batch.weight.unsqueeze(1)
    look = (values["batch"] * (of_class.to(rows.dtype).T @ rows).detach()).sum()  # 0, as `batch` is
    return look - batch.mean(likelihood + ctx.hp.lam * ctx.known[batch.y] * agreement)


def step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """A plain step on the model; `seen` sums up the outputs by class, those before the step."""
    gradients, moved = do.gradient(distillation_loss, values, batch, ctx)
    seen = values["seen"] + gradients["batch"]
    return do.update(moved, gradients) | {"seen": seen, "batch": values["batch"]}
