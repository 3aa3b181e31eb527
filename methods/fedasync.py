"""FedAsync: Xie et al. 2019, "Asynchronous Federated Optimization", Algorithm 1.

FedAvg's clients with the server rule `fedasync`, which works with any method whose aggregation is a mean
(`{name: ditto, server: {name: fedasync}}`).
"""

from typing import Any

from bench.method import METHODS, Method
from methods.fedavg import FedAvg
from methods.server_rules import AsyncHyper, FedAsync


@METHODS.register("fedasync")
class FedAsyncAvg(Method):
    """One generic model that every upload updates; staler uploads have less weight."""

    Hyper = AsyncHyper
    mean_of = ("model",)
    client_round = FedAvg.client_round

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.rule = FedAsync(hyper)
