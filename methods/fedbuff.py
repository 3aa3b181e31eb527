"""FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", Algorithm 1.

FedAvg's clients with the server rule `fedbuff`, which works with any method whose aggregation is a mean
(`{name: ditto, server: {name: fedbuff}}`).
"""

from typing import Any

from bench.method import METHODS, Method
from methods.fedavg import FedAvg
from methods.server_rules import BufferHyper, FedBuff


@METHODS.register("fedbuff")
class FedBuffAvg(Method):
    """One generic model that is updated whenever a buffer of uploads is full."""

    Hyper = BufferHyper
    mean_of = ("model",)
    client_round = FedAvg.client_round

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.rule = FedBuff(hyper)
