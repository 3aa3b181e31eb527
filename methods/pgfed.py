"""PGFed: Luo et al. 2023 (ICCV), "PGFed: Personalize Each Client's Global Objective for Federated Learning".

A client minimises its own risk plus mu times a weighted sum of the other clients' risks. Each of these is replaced by
its first-order expansion f_j(theta_j) + g_j . (theta_i - theta_j), so that clients receive gradients of others, not
their models. The weights alpha are learned. In `pgfedmo` a client smooths the received auxiliary gradient over its
rounds; in `pgfed_ce` the server updates alpha.
"""

from typing import Literal

import torch
from torch import Tensor

from bench.method import METHODS, SGD, Client, Gradient, Hyperparameters, Message, Method, Params, Program
from bench.method import Range, Server, State, Train, Upload, cross_entropy, hp, mean
from methods.expansions import auxiliary_loss, expansions, joint_step
from methods.variants import variant


class Hyper(Hyperparameters):
    """Hyperparameters of PGFed; `lam` is the step size of alpha, `beta` the momentum of PGFedMo."""

    mu: float = hp(0.1, ge=0, search=Range(0.01, 1, log=True))
    lam: float = hp(0.01, ge=0, search=Range(0.001, 0.1, log=True))
    beta: float = hp(0.0, ge=0, le=1)
    coefficients: Literal["client", "server"] = hp("client", static=True)

    def degenerate(self) -> list[str]:
        return ["mu = 0: the generic model of PGFed is that of FedAvg"] if self.mu == 0 else []


class PGFedMoHyper(Hyper):
    """PGFed whose clients smooth the auxiliary gradient over their rounds."""

    beta: float = hp(0.5, ge=0, le=1, search=Range(0, 1))


class PGFedCEHyper(Hyper):
    """PGFed with fewer messages: the server updates the coefficients, once per round."""

    coefficients: Literal["client", "server"] = hp("server", static=True)


@METHODS.register("pgfed")
class PGFed(Method):
    """Every client's objective contains the risks of all others, with learned coefficients."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        state = server.state
        down: State = {"model": state["model"]}
        if "gradients" not in state:  # no client has sent a gradient yet: a round of FedAvg
            return down
        alpha = self._alpha(server, client.id)
        down["auxiliary"] = self.hp.mu * alpha[state["sources"]] @ state["gradients"]
        if self.hp.coefficients == "client":
            down |= {name: state[name] for name in ("mean_gradient", "constants", "sources")}
            down["clients"] = len(alpha)
        return down

    def client_round(self, client: Client, down: State) -> Program:
        start = {"w": down["model"]}
        up: State = {}
        if "auxiliary" not in down:
            trained = yield Train(start, loss=cross_entropy)
        elif self.hp.coefficients == "server":
            trained = yield Train(start, loss=auxiliary_loss, context={"auxiliary": self._smoothed(client, down)})
        else:
            sources, initial = down["sources"], _equal(down["clients"], down["constants"])
            alpha = client.state.get("alpha", initial)
            trained = yield Train(
                start | {"alpha": alpha[sources]},
                step=joint_step,
                optimizer={"w": SGD()},
                context={
                    "auxiliary": self._smoothed(client, down),
                    "mean_gradient": down["mean_gradient"],
                    "constants": down["constants"],
                },
            )
            alpha = alpha.clone()
            alpha[sources] = trained["alpha"]
            client.state["alpha"] = up["alpha"] = alpha
        w = client.state["personal"] = trained["w"]
        gradients, loss = yield Gradient({"w": w}, loss=cross_entropy)
        constant = loss - gradients["w"] @ w.weights
        yield Upload({"model": w, "gradient": gradients["w"], "constant": constant, **up})
        return w

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state, ids = server.state, sorted(server.sizes)
        if "gradients" in state:
            alphas = {m.client: self._updated(server, m) for m in messages}
            state["alphas"] = {**state.get("alphas", {}), **alphas}
        state["model"] = mean(messages, "model")
        state["sources"] = [ids.index(m.client) for m in messages]
        state["gradients"] = torch.stack([m["gradient"] for m in messages])
        state["constants"] = torch.stack([m["constant"] for m in messages])
        state["mean_gradient"] = self.hp.mu * state["gradients"].mean(0)

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The coefficients alpha: row i are those of client i's objective."""
        if "gradients" not in server.state:
            return {}
        return {"coefficients": torch.stack([self._alpha(server, i) for i in sorted(server.sizes)])}

    def _alpha(self, server: Server, client: int) -> Tensor:
        """The coefficients `[N]` of a client as the server knows them."""
        return server.state.get("alphas", {}).get(client, _equal(len(server.sizes), server.state["constants"]))

    def _updated(self, server: Server, message: Message) -> Tensor:
        """The client's new coefficients, or the server's own step on them at the client's model."""
        if "alpha" in message.values:
            return message["alpha"]
        state = server.state
        alpha = self._alpha(server, message.client).clone()
        risks = expansions(state["constants"], state["mean_gradient"], message["model"], self.hp.mu)
        alpha[state["sources"]] = (alpha[state["sources"]] - self.hp.lam * risks).clamp(min=0)
        return alpha

    def _smoothed(self, client: Client, down: State) -> Tensor:
        """(1 - beta) new + beta old; the first auxiliary gradient is used unchanged."""
        auxiliary, beta = down["auxiliary"], self.hp.beta
        if beta == 0:
            return auxiliary
        if "auxiliary" in client.state:
            auxiliary = (1 - beta) * auxiliary + beta * client.state["auxiliary"]
        client.state["auxiliary"] = auxiliary
        return auxiliary


variant("pgfedmo", PGFed, PGFedMoHyper)
variant("pgfed_ce", PGFed, PGFedCEHyper)


def _equal(clients: int, constants: Tensor) -> Tensor:
    """Initial coefficients: 1/M for all N clients, M of them selected in a round."""
    return constants.new_full((clients,), 1 / len(constants))
