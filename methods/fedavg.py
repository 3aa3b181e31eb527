"""FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks ...", Algorithm 1."""

from bench.method import METHODS, Client, Method, Program, State, Train, Upload, cross_entropy


@METHODS.register("fedavg")
class FedAvg(Method):
    """One generic model: local epochs from the broadcast model, then the mean weighted by training samples."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]
