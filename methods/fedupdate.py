"""FedUpdate, as the SPFL paper calls it: FedAvg, whose model every client fine-tunes before use (Yu, Bagdasaryan and
Shmatikov 2020, "Salvaging Federated Learning by Local Adaptation").
"""

from bench.method import (
    METHODS, SGD, Client, Hyperparameters, Method, Program, Server, State, Train, Upload, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedUpdate.

    Attributes:
        fine_tune_epochs, fine_tune_steps: how long a client fine-tunes; steps, if given, replace epochs.
        fine_tune_lr: learning rate of fine-tuning; None: the cell's learning rate.
    """

    fine_tune_epochs: int = hp(1, ge=0, static=True)
    fine_tune_steps: int | None = hp(None, ge=0, static=True)
    fine_tune_lr: float | None = hp(None, gt=0, static=True)

    def degenerate(self) -> list[str]:
        steps = self.fine_tune_epochs if self.fine_tune_steps is None else self.fine_tune_steps
        return ["no fine-tuning: FedUpdate is FedAvg"] if steps == 0 else []


@METHODS.register("fedupdate")
class FedUpdate(Method):
    """FedAvg; before every test each client fine-tunes the generic model on its own data."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Program:
        return self._fine_tuned(down, self.hp.fine_tune_epochs, self.hp.fine_tune_steps)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        return self._fine_tuned(down, epochs)

    def _fine_tuned(self, down: State, epochs: int, steps: int | None = None) -> Program:
        optimizer = SGD(lr=self.hp.fine_tune_lr)
        tuned = yield Train({"w": down["model"]}, loss=cross_entropy, epochs=epochs, steps=steps, optimizer=optimizer)
        return tuned["w"]
