"""Who gains: personalized accuracy client by client, not only on average.

The accuracies are those of the round that the table reports, on each client's own test data; a client without test data
counts nowhere.
"""

import numpy as np
import pandas as pd

from reports import statistics
from reports.accuracy import PM
from reports.figure import Figure
from reports.load import Store
from reports.tables import Column, Entry, Table, number, words

MEASURES = ("mean", "worst decile", "bottom 10 %", "spread", "worse than local")


def client_accuracies(store: Store, chosen: str, figure: Figure = PM) -> pd.DataFrame:
    """Accuracy in percent of every client: row, task, trial, client, accuracy, n_train.

    Args:
        store: cells of one protocol.
        chosen: which round: `best`, `last` or `validation`.
        figure: whose round it is, and of which models; means over clients differ in their best round.
    """
    figures = store.figures
    headline = figures[
        (figures["metric"] == figure.metric)
        & (figures["on"] == figure.on)
        & (figures["mean"] == figure.mean)
        & (figures["selection"] == figures["task"].map(lambda task: store.selected(task, chosen)))
    ]
    keys = ["row", "task", "trial"]
    clients = store.table("clients")
    clients = clients[(clients["metric"] == figure.metric) & (clients["split"] == "test") & (clients["samples"] > 0)]
    clients = clients.merge(headline[[*keys, "round"]], on=[*keys, "round"])
    clients["accuracy"] = 100 * clients["correct"] / clients["samples"]
    return clients.merge(_sizes(store), on=[*keys, "client"])[[*keys, "client", "accuracy", "n_train"]]


def gains(clients: pd.DataFrame, store: Store) -> pd.DataFrame:
    """Gain of every client over training alone, in percentage points: `clients` of the other rows, and `gain`.

    Empty where the grid has no `local`.
    """
    alone = clients[clients["row"].isin(_local_rows(store)[:1])]
    keys = ["task", "trial", "client"]
    others = clients[~clients["row"].isin(alone["row"])]
    both = others.merge(alone[[*keys, "accuracy"]], on=keys, suffixes=("", "_alone"))
    return both.assign(gain=both["accuracy"] - both["accuracy_alone"]).drop(columns="accuracy_alone")


def worst_decile(accuracies: statistics.Floats) -> float:
    """The accuracy that nine clients in ten reach: the 10 % quantile."""
    return float(np.quantile(accuracies, 0.1))


def bottom_mean(accuracies: statistics.Floats, share: float = 0.1) -> float:
    """Mean accuracy of the worst `share` of clients, at least one."""
    count = max(1, round(share * len(accuracies)))
    return float(np.sort(accuracies)[:count].mean())


def fairness_table(store: Store, clients: pd.DataFrame) -> Table:
    """One row per method and task: measures over clients, mean and standard deviation over seeds."""
    gain = gains(clients, store)
    share = {key: 100 * float((group < 0).mean()) for key, group in gain.groupby(["row", "task", "trial"])["gain"]}
    measured: dict[tuple[str, str], list[list[float]]] = {}
    for key, group in clients.groupby(["row", "task", "trial"], sort=False)["accuracy"]:
        x = group.to_numpy(dtype=float)
        values = [x.mean(), worst_decile(x), bottom_mean(x), x.std(ddof=1) if len(x) > 1 else np.nan]
        row, task, _ = (str(part) for part in key)
        measured.setdefault((row, task), []).append([*values, share.get(key, np.nan)])
    rank = _rank_correlation(gain)
    rows = []
    for row, task in [(row, task) for task in store.tasks for row in store.rows if (row, task) in measured]:
        columns = np.array(measured[row, task]).T
        entries = [_over_seeds(values) for values in columns]
        correlation = rank.get((row, task), np.nan)
        rows.append((row, (words(task), *entries, number(correlation, signed=True))))
    caption = (
        "Personalized models client by client, test accuracy in percent, every client counting the same; mean ± "
        "standard deviation over seeds. Worst decile: nine clients in ten do better. Bottom 10 %: mean of the worst "
        "tenth. Spread: standard deviation over clients. Worse than local: share of clients (percent) that training "
        "alone serves better. ρ: Spearman's correlation of the gain over local with the amount of training data."
    )
    heads = ("task", *MEASURES, "ρ(gain, size)")
    return Table("fairness", "Client by client", caption, "Method", tuple(map(Column, heads)), tuple(rows))


def _over_seeds(values: statistics.Floats) -> Entry:
    summary = statistics.summarise(values)
    if np.isnan(summary.mean):
        return words("–")
    return Entry(summary.mean, None if np.isnan(summary.std) else summary.std, decimals=1)


def _rank_correlation(gain: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Spearman's correlation of gain and size over all clients and seeds; where neither is constant."""
    from scipy import stats

    return {
        (str(key[0]), str(key[1])): float(stats.spearmanr(group["gain"], group["n_train"]).statistic)
        for key, group in gain.groupby(["row", "task"])
        if group["gain"].nunique() > 1 and group["n_train"].nunique() > 1
    }


def _local_rows(store: Store) -> list[str]:
    return list(dict.fromkeys(cell.row for cell in store.cells if cell.view.settings.method == "local"))


def _sizes(store: Store) -> pd.DataFrame:
    """Training samples of every client: row, task, trial, client, n_train."""
    rows = [
        (cell.row, cell.task, cell.trial, client, n_train)
        for cell in store.cells
        if cell.state == "done"
        for client, n_train in enumerate(cell.json("partition")["n_train"])
    ]
    return pd.DataFrame(rows, columns=["row", "task", "trial", "client", "n_train"])
