"""FedNova: Wang, Liu, Liang, Joshi and Poor 2020 (NeurIPS), "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", eq. 6 and 7 with tau_eff = sum p_i ||a_i||_1.

The local change of a client is -eta G_i a_i, where a_i holds the weights of its gradients. To find eta ||a_i||_1 for
any momentum and schedule, the optimizer also updates a scalar whose gradient is -1 in every step.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Message, Method, Program, Server, State, Train, Upload, Values, cross_entropy,
    mean,
)  # fmt: skip


@METHODS.register("fednova")
class FedNova(Method):
    """FedAvg of normalised updates, so that clients with more local steps do not pull the model to their optimum."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        w = down["model"]
        trained = yield Train(
            {"w": w, "length": w.weights.new_zeros(())},
            step=counted_step,
            optimizer={"w": SGD(), "length": SGD(weight_decay=0.0, clip=math.inf)},
        )
        yield Upload({"model": trained["w"], "length": trained["length"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        """x + (sum p_i s_i) sum p_i (x_i - x) / s_i, with s_i = eta ||a_i||_1."""
        x = server.state["model"]
        directions = [
            replace(m, values={"d": torch.where(m["length"] > 0, (m["model"].weights - x.weights) / m["length"], 0.0)})
            for m in messages
        ]
        step = mean(messages, "length") * mean(directions, "d")
        server.state["model"] = mean(messages, "model").with_weights(x.weights + step)


def counted_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """A plain step on `w`; `length` sums the lengths of the steps for a gradient of size 1."""
    gradients, values = do.gradient(cross_entropy, values, batch, ctx)
    return do.update(values, {"w": gradients["w"], "length": torch.full_like(values["length"], -1.0)})
