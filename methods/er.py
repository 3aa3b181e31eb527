"""ER: Chaudhry et al. 2019, "On Tiny Episodic Memories in Continual Learning", experience replay by clients of FedAvg.

The paper learns tasks one after another on one machine. Here every client of FedAvg has such a memory: where its data
change, it keeps a few of the samples that it had before, chosen by reservoir sampling.
"""

from typing import Any

from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Feed, Hyperparameters, Method, Program, State, Train, Upload, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """`memory`: number of samples of a client's memory; 0: none."""

    memory: int = hp(50, ge=0, static=True, search=(10, 50, 200))

    def degenerate(self) -> list[str]:
        return ["memory = 0: ER is FedAvg"] if self.memory == 0 else []


@METHODS.register("er")
class ER(Method):
    """FedAvg whose clients train on a batch of their data and one of their memory, of equal size, in every step."""

    Hyper = Hyper
    mean_of = ("model",)
    symmetric = False  # a memory has an absolute size

    def client_round(self, client: Client, down: State) -> Program:
        replays = client.n_earlier > 0 and self.hp.memory > 0
        memory = {"memory": Feed("earlier", subset=self.hp.memory, order="uniform", stream=1)} if replays else {}
        trained = yield Train({"w": down["model"]}, loss=replay if replays else cross_entropy, side=memory)
        yield Upload({"model": trained["w"]})
        return trained["w"]


def replay(model: Any, values: dict[str, Any], batch: Batch, ctx: Any) -> Tensor:
    """The mean cross-entropy over both batches."""
    new = cross_entropy(model, values, batch, ctx)
    old = cross_entropy(model, values, batch.side["memory"], ctx)
    return (new + old) / 2
