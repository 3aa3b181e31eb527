"""FedAvg with fine-tuning (FedAvg-FT): McMahan et al. 2017 for training; before use every client trains the model
further on its own data (Wang et al. 2019, "Federated Evaluation of On-device Personalization"; Yu et al. 2020,
"Salvaging Federated Learning by Local Adaptation"). With all layers it is what the SPFL paper calls FedUpdate.
"""

from bench.method import (
    METHODS, SGD, Client, Hyperparameters, Method, Program, Server, State, Train, cross_entropy, hp,
)  # fmt: skip
from methods.fedavg import FedAvg


class Hyper(Hyperparameters):
    """Hyperparameters of fine-tuning.

    Attributes:
        fine_tune_epochs: how long a client fine-tunes before use.
        fine_tune_lr: learning rate of fine-tuning; None: the cell's learning rate.
        layers: layers that are fine-tuned; by default all.
    """

    fine_tune_epochs: int = hp(5, ge=0, static=True, search=(1, 5, 10))
    fine_tune_lr: float | None = hp(None, gt=0, static=True)
    layers: tuple[str, ...] = hp(("",), static=True)

    def degenerate(self) -> list[str]:
        nothing = self.fine_tune_epochs == 0 or not self.layers
        return ["no fine-tuning: all models are FedAvg's"] if nothing else []


@METHODS.register("finetune")
class FineTune(Method):
    """FedAvg; before every test each client fine-tunes a copy of the generic model, which is then discarded."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)
    client_round = FedAvg.client_round

    def personal(self, server: Server, client: Client, down: State) -> Program:
        return self.adapt(server, client, down, self.hp.fine_tune_epochs)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        if not self.hp.layers:
            return down["model"]
        tuned = yield Train(
            {"w": down["model"]},
            loss=cross_entropy,
            epochs=epochs,
            optimizer=SGD(lr=self.hp.fine_tune_lr),
            only={"w": self.hp.layers},
        )
        return tuned["w"]
