"""Personalized models that are the generic one.

A method can train a client's own part that its network does not have: FedBN keeps normalisation layers with the
clients, and on a network without any it is FedAvg. That shows in the numbers: of every client, its personalized model
classifies as many samples right as its generic model does.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from bench.results.results import CellView

_LEAST = 3
"""Cells: in fewer, equal accuracies may be chance, as those of two models that both make no error."""
_KEYS = ["protocol", "row", "task", "seed"]


def equal_models(figures: pd.DataFrame, views: Mapping[str, CellView]) -> pd.Series:
    """Find the cells whose PM is their GM in every score, at every round, of every client.

    Args:
        figures: as in `reports.reading.load.Store`; cells without one of the two models are left out, and so is
            derived PM.
        views: the cells by their ids.

    Returns:
        A truth value by protocol, row, task and seed.
    """
    # rounds chosen on validation data may differ: GM's is chosen on pooled samples, PM's on clients' accuracies
    local = figures[(figures["on"] == "local") & figures["selection"].isin(["last", "tail"])]
    keys = [*_KEYS, "cell", "mean", "selection"]
    personalized = local[(local["metric"] == "pm") & ~local["derived"].astype(bool)].set_index(keys)["value"]
    generic = local[local["metric"] == "gm"].set_index(keys)["value"]
    both = pd.concat([personalized, generic], axis=1, keys=["personalized", "generic"], join="inner").astype(float)
    same = pd.Series(np.isclose(both["personalized"], both["generic"], rtol=1e-9, atol=0), both.index, dtype=bool)
    likely = same.groupby([*_KEYS, "cell"], sort=False).all().reset_index("cell", name="same")
    return pd.Series(
        [bool(same) and _same_counts(views[cell]) for cell, same in likely.itertuples(index=False)],
        likely.index,
        dtype=bool,
    )


def mark_generic(figures: pd.DataFrame, views: Mapping[str, CellView]) -> pd.DataFrame:
    """Mark PM as derived in the figures where all cells of a row and protocol have equal models.

    A method that trains personalized models on some tasks and finds the generic one good enough on others, as CFL does
    where it splits no cluster, keeps its figures: that is its answer there.
    """
    cells = equal_models(figures, views).groupby(["protocol", "row"])
    generic = set(cells.all()[lambda same: same & (cells.size() >= _LEAST)].index)
    of_row = pd.Series(list(zip(figures["protocol"], figures["row"], strict=True)), figures.index)
    derived = figures["derived"].astype(bool) | ((figures["metric"] == "pm") & of_row.isin(generic))
    return figures.assign(derived=derived)


def _same_counts(view: CellView) -> bool:
    clients = view.table("clients")
    keys = ["round", "client", "split"]
    personalized, generic = (clients[clients["metric"] == metric].set_index(keys)["correct"] for metric in ("pm", "gm"))
    return personalized.sort_index().equals(generic.sort_index())
