"""The accuracy that a table or picture is about."""

from dataclasses import dataclass

from reports.reading.load import Store


@dataclass(frozen=True)
class Figure:
    """The choice of one accuracy: of which model, on which test data, and how it is averaged over clients."""

    name: str
    metric: str
    on: str
    mean: str

    @property
    def text(self) -> str:
        """Name and description for captions."""
        models = {"gm": "generic model", "pm": "personalized models", "lm": "models right after local training"}
        means = {
            "train_size": ", weighted by training size",
            "equal": ", every client counting the same",
            "benign": " of the benign clients, weighted by training size",
            "": "",
        }
        place = "common test set" if self.on == "global" else "clients' local test sets"
        return f"{self.name}: {models[self.metric]} on the {place}{means[self.mean]}"


def scores(store: Store, row: str, task: str, figure: Figure, chosen: str) -> dict[str, float]:
    """Accuracy in percent by unit (`Store.scores`)."""
    return store.scores(row, task, figure.metric, figure.on, figure.mean, chosen)
