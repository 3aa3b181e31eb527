"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1, option II.

Option II sets c_i+ = c_i - c + (x - y_i) / (K eta). The K local steps add up to x - y_i = eta (sum of batch gradients
- K c_i + K c), so c_i+ is the mean of the round's batch gradients. The code computes this mean directly, which needs no
learning rate.
"""

from typing import Any

import torch

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Hyperparameters, Message, Method, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of SCAFFOLD; `server_lr` is the paper's global step size eta_g."""

    server_lr: float = hp(1.0, gt=0, search=Range(0.3, 3.0, log=True))


@METHODS.register("scaffold")
class Scaffold(Method):
    """Local gradients are corrected by the difference between the mean gradient and the client's own of past rounds."""

    Hyper = Hyper
    mean_of = ("model",)

    def init(self, server: Server) -> None:
        super().init(server)
        server.state["control"] = torch.zeros_like(server.state["model"].weights)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["control"] = torch.zeros_like(server.initial_model().weights)

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"], "control": server.state["control"]}

    def client_round(self, client: Client, down: State) -> Program:
        c, c_i = down["control"], client.state["control"]
        trained = yield Train(
            {"w": down["model"], "gradients": torch.zeros_like(c)},
            step=corrected_step,
            optimizer={"w": SGD(momentum=0.0)},
            context={"correction": c - c_i},
        )
        if trained.steps:
            client.state["control"] = trained["gradients"] / trained.steps
        yield Upload({"model": trained["w"], "control_change": client.state["control"] - c_i})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        x, y, c = server.state["model"], mean(messages, "model", equal=True), server.state["control"]
        # x + server_lr (y - x), which lerp rounds to y itself where server_lr = 1; running statistics are those of y
        server.state["model"] = y.with_weights(x.weights.lerp(y.weights, self.hp.server_lr))
        server.state["control"] = c + sum(m["control_change"] for m in messages) / len(server.sizes)


def corrected_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """`y <- y - eta (g(y) - c_i + c)`; the uncorrected gradients are summed for the next c_i."""
    gradients, values = do.gradient(cross_entropy, values, batch, ctx)
    g = gradients["w"]
    return do.update(values, {"w": g + ctx.correction}) | {"gradients": values["gradients"] + g}
