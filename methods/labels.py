"""A client's own training labels, for methods that need them sample by sample (kNN-Per, pFedFDA)."""

from typing import Any

from bench.method import Batch, Client, Do, Feed, Params, Program, Train, Values


def own_labels(client: Client, w: Params) -> Program:
    """The labels `[samples]` in the order of `Predict(w, "train")`, as numbers of the weights' type."""
    noted = yield Train(
        {"labels": w.weights.new_zeros(client.n_train)},
        step=note_labels,
        epochs=1,
        feed=Feed(order="cyclic", augment=False),
        optimizer={},
    )
    return noted["labels"]


def note_labels(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """Write the labels of a batch to the positions of its samples in the client's list."""
    return {"labels": values["labels"].scatter(0, batch.index, batch.y.to(values["labels"].dtype))}
