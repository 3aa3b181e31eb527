"""A notebook in one file (docs/python.md): an own method, an own score, a callback that plots, a run, a prediction."""

import matplotlib.pyplot as plt
import torch

import bench
from bench.method import Method, Train, Upload, cross_entropy


class Halfway(Method):
    """FedAvg whose clients go half of their way."""

    mean_of = ("model",)

    def client_round(self, client, down):
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"].with_weights((down["model"].weights + trained["w"].weights) / 2)})
        return trained["w"]


@bench.metric("top3")
def top3(labels, logits):
    """Share of samples whose label is among the three largest outputs."""
    return (logits.argsort(1)[:, -3:] == labels[:, None]).any(1).mean()


class Plot(bench.Callback):
    """Draw the curves again after each evaluation."""

    def __init__(self):
        self.curves = {}

    def after_evaluation(self, at):
        self.curves.setdefault(at.settings.name, []).append(at.figures["gm"])
        figure, axes = plt.subplots()
        for label, curve in self.curves.items():
            axes.plot(range(1, len(curve) + 1), curve, label=label)
        figure.legend()
        figure.savefig("curves.png")
        plt.close(figure)


if __name__ == "__main__":
    grid = {"methods": ["fedavg"], "alphas": [1.0], "clients": 5, "rounds": 4, "model": "mlp", "metrics": ["top3"]}
    run = bench.run(grid, out="runs/halfway", methods=[Halfway], callbacks=[Plot()], keep="best")
    print(run)
    print(run.metrics.groupby(["label", "metric", "quantity"])["value"].last())
    halfway, data = run.cells[1], bench.load_dataset(run.cells[1].settings)
    print(halfway.model()(torch.from_numpy(data.x[:5])).argmax(1).tolist(), "predicted,", data.y[:5].tolist(), "true")
