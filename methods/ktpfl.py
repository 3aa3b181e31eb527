"""KT-pFL: Zhang, Guo, Ma, Wang, Xu and Wu, "Parameterized Knowledge Transfer for Personalized Federated Learning",
NeurIPS 2021, in the heterogeneous form, in which clients exchange soft predictions.

Client k minimises CE on its own data, then lam KL(sum_j c_kj s_j || s_k) over public samples. All soft predictions s,
including the student's own, are softmax(logits / T), so distilling a client's own predictions changes nothing. The rows
of the coefficient matrix c are distributions over the clients. The server learns them with the divergence and the
penalty rho ||c_k - 1/K||^2.
"""

from typing import Any, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from bench.method import (
    METHODS, Batch, Client, Exchange, Feed, Hyperparameters, Message, Method, Params, Predict, Program, Range, Server,
    State, Train, Values, cross_entropy, hp,
)  # fmt: skip
from methods.simplex import onto_simplex


class Hyper(Hyperparameters):
    """Hyperparameters of KT-pFL; `temperature` (T) softens predictions, `eta3` is the step size of the coefficients."""

    temperature: float = hp(10.0, gt=0, search=Range(1, 20, log=True))
    lam: float = hp(1.0, gt=0, search=Range(0.1, 10, log=True))
    rho: float = hp(0.7, ge=0, search=Range(0.07, 3, log=True))
    eta3: float = hp(0.1, ge=0, search=Range(0.01, 0.15, log=True))
    distil_epochs: int = hp(1, ge=0, static=True)
    distil_batch: int = hp(256, ge=1, static=True)

    @model_validator(mode="after")
    def _no_step_beyond_equal_coefficients(self) -> Self:
        if 2 * self.eta3 * self.rho > 1:  # at 2 or more the rows would oscillate between corners of the simplex
            raise ValueError("2 eta3 rho must not exceed 1: the pull towards equal coefficients would step past them")
        return self

    def degenerate(self) -> list[str]:
        found = ["distil_epochs = 0: KT-pFL is Local"] if self.distil_epochs == 0 else []
        return found + (["eta3 = 0: the coefficients stay equal"] if self.eta3 == 0 else [])


@METHODS.register("ktpfl")
class KTpFL(Method):
    """Clients of any architecture distil their own mixtures of all clients' predictions, with learned coefficients."""

    Hyper = Hyper
    trains = "pm"
    public = True
    mixes_models = True

    def init(self, server: Server) -> None:
        clients = len(server.sizes)
        server.state["coefficients"] = server.initial_model().weights.new_full((clients, clients), 1 / clients)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=cross_entropy)
        logits = yield Predict(trained["w"], output="logits")
        answer = yield Exchange({"predictions": (logits / self.hp.temperature).softmax(1)})
        distilled = yield Train(
            {"w": trained["w"]},
            loss=distillation_loss,
            epochs=self.hp.distil_epochs,
            feed=Feed("public", self.hp.distil_batch),
            context={"target": answer["target"]},
        )
        client.state["personal"] = distilled["w"]
        return trained["w"]

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        """Targets from the current coefficients; then one projected step on the selected clients' coefficients."""
        ids, c = sorted(server.sizes), server.state["coefficients"]
        s = torch.stack([m["predictions"] for m in messages])
        at = torch.tensor([ids.index(m.client) for m in messages], device=c.device)
        block = at.unsqueeze(1), at
        mass, equal = c[block].sum(1, keepdim=True), 1 / len(messages)
        rows = torch.where(mass > 0, c[block] / mass, equal)
        targets = torch.einsum("kj,jxn->kxn", rows, s)
        slope = self.hp.lam * divergence_gradient(targets, s) + 2 * self.hp.rho * (rows - equal)
        # A row's mass on the selected clients is kept, so it still sums to 1 with its other entries unchanged.
        server.state["coefficients"] = c.index_put(block, mass * onto_simplex(rows - self.hp.eta3 * slope))
        return {m.client: {"target": target} for m, target in zip(messages, targets, strict=True)}

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["personal"]
        return w

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The coefficients: row k holds the shares of all clients in client k's target."""
        return {"coefficients": server.state["coefficients"]}


def divergence_gradient(targets: Tensor, s: Tensor) -> Tensor:
    """Gradient of mean_x KL(t_k || s_k), t_k = sum_j c_kj s_j, with respect to c_kj: `[k, j]`.

    Targets and predictions are `[clients, samples, classes]`; underflowed ones are replaced by the smallest number.
    """
    least = torch.finfo(s.dtype).tiny
    ratio = targets.clamp(min=least).log() - s.clamp(min=least).log()
    return 1 + torch.einsum("kxn,jxn->kj", ratio, s) / s.shape[1]


def distillation_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """lam times the mean over public samples of KL(target || own soft predictions)."""
    scores = (model(values["w"], batch.x) / ctx.hp.temperature).log_softmax(1)
    divergence = nn.functional.kl_div(scores, ctx.target[batch.index], reduction="none").sum(1)
    loss: Tensor = ctx.hp.lam * batch.mean(divergence)
    return loss
