"""Fairness: personalized accuracy client by client, not only on average.

The accuracies are those of the round that the table reports, on each client's own test data; a client without test data
counts nowhere.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from bench.data import Floats
from bench.rng import generator
from reports.reading.load import PM, Figure, Store, remembered
from reports.tables.table import Column, Table, mean_entry, number, words

LEAST = 5
"""Test samples: the accuracy of a client with fewer says next to nothing of how it differs from others."""
_DRAWS = 400
_READINGS = ("seen", "equal clients", "shrunk")


@remembered
def client_accuracies(store: Store, figure: Figure = PM) -> pd.DataFrame:
    """Accuracy in percent of every client: row, task, seed, client, correct, samples, accuracy, n_train.

    Args:
        figure: whose round it is, and of which models; means over clients differ in their best round.
    """
    figures = figure.of(store.figures)
    headline = figures[figures["selection"] == figures["task"].map(lambda task: store.selected(task))]
    keys = ["row", "task", "seed"]
    clients = store.table("clients")
    clients = clients[(clients["metric"] == figure.metric) & (clients["split"] == "test") & (clients["samples"] > 0)]
    clients = clients.merge(headline[[*keys, "round"]], on=[*keys, "round"])
    clients["accuracy"] = 100 * clients["correct"] / clients["samples"]
    return clients.merge(_sizes(store), on=[*keys, "client"])[
        [*keys, "client", "correct", "samples", "accuracy", "n_train"]
    ]


def with_diverged(clients: pd.DataFrame, store: Store) -> pd.DataFrame:
    """Clients of all cells: those of a cell that diverged are at chance level, as in all tables of accuracies.

    Args:
        clients: `client_accuracies`; any other row of a task and seed has the same clients.
    """
    keys = ["task", "seed", "client"]
    same = clients.drop_duplicates(keys)[[*keys, "samples", "n_train"]]
    guessing = store.guesses().drop(columns="unit").merge(same, on=["task", "seed"])
    if guessing.empty:
        return clients
    return pd.concat([clients, guessing.assign(correct=guessing["samples"] * guessing["accuracy"] / 100)])


def gains(clients: pd.DataFrame, store: Store) -> pd.DataFrame:
    """Gain of every client over training alone, in percentage points: `clients` of the other rows, and `gain`.

    Empty where the grid has no `local`.
    """
    local = next((cell.row for cell in store.cells if cell.view.settings.method == "local"), None)
    alone = clients[clients["row"] == local]
    keys = ["task", "seed", "client"]
    others = clients[~clients["row"].isin(alone["row"])]
    both = others.merge(alone[[*keys, "accuracy"]], on=keys, suffixes=("", "_alone"))
    return both.assign(gain=both["accuracy"] - both["accuracy_alone"]).drop(columns="accuracy_alone")


def worst_decile(accuracies: Floats) -> Floats:
    """The accuracy that nine clients in ten reach, the 10 % quantile: `[..., clients]` -> `[...]`."""
    return np.asarray(np.quantile(accuracies, 0.1, axis=-1))


def bottom_mean(accuracies: Floats, share: float = 0.1) -> Floats:
    """Mean accuracy of the worst `share` of clients, at least one: `[..., clients]` -> `[...]`."""
    count = max(1, round(share * accuracies.shape[-1]))
    return np.asarray(np.sort(accuracies, axis=-1)[..., :count].mean(axis=-1))


def spread(accuracies: Floats) -> Floats:
    """Standard deviation over clients (ddof 1): `[..., clients]` -> `[...]`."""
    return np.asarray(accuracies.std(axis=-1, ddof=1))


MEASURES = {"worst decile": worst_decile, "bottom 10 %": bottom_mean, "spread": spread}


def equal_clients(correct: Floats, samples: Floats, *address: int | str) -> Floats:
    """Accuracies in percent, `[draws, clients]`, of clients that differ in nothing but chance: the binomial null.

    Every client answers each of its own number of test samples with the probability that all have together.

    Args:
        correct, samples: per client.
        address: where the draws come from (`bench.rng.generator`).
    """
    chance = correct.sum() / samples.sum()
    draws = generator("equal clients", *address).binomial(samples.astype(int), chance, size=(_DRAWS, len(samples)))
    return np.asarray(100 * draws / samples)


def correlation(correct: Floats, samples: Floats) -> float:
    """Correlation of two test samples of one client: the beta-binomial's rho by moments, 0 to 1 (0: equal clients).

    With p the pooled share and N all samples, the sum of n_k (p_k - p)^2 has the mean
    p (1 - p) sum (1 - n_k / N) (1 + (n_k - 1) rho) (Kleinman 1973, JASA 68, with weights n_k). One sample per client,
    or all answers right or wrong, say nothing of rho: then it is 0.
    """
    total = samples.sum()
    share = correct.sum() / total
    weight = ((1 - samples / total) * (samples - 1)).sum()
    if weight == 0 or not 0 < share < 1:
        return 0.0
    seen = (samples * (correct / samples - share) ** 2).sum() / (share * (1 - share))
    return float(np.clip((seen - (len(samples) - 1)) / weight, 0, 1))


def shrunk(correct: Floats, samples: Floats) -> Floats:
    """Accuracies in percent, each drawn towards the pooled one by as much as its test data are chance.

    The beta-binomial's posterior mean keeps the part w = n rho / (1 + (n - 1) rho) of a client's distance; its square
    root is kept instead, so that the clients spread as much as they are estimated to differ, not less (Louis 1984,
    JASA 79: posterior means are right one by one and too close together as a set).
    """
    share, rho = correct.sum() / samples.sum(), correlation(correct, samples)
    part = samples * rho / (1 + (samples - 1) * rho)
    return np.asarray(100 * (share + np.sqrt(part) * (correct / samples - share)))


def fairness_table(store: Store, clients: pd.DataFrame) -> Table:
    """One row per method and task: measures over clients, mean and standard deviation over seeds."""
    gain = gains(clients, store)
    share = {key: 100 * float((group < 0).mean()) for key, group in gain.groupby(["row", "task", "seed"])["gain"]}
    measured: dict[tuple[str, str], list[list[float]]] = {}
    for key, group in clients.groupby(["row", "task", "seed"], sort=False):
        row, task, seed = (str(part) for part in key)
        tested = group[group["samples"] >= LEAST]
        values = [group["accuracy"].mean(), float(len(tested)), *_readings(tested, row, task, seed)]
        measured.setdefault((row, task), []).append([*values, share.get(key, np.nan)])
    rank = _rank_correlation(gain)
    rows = []
    for row, task in [(row, task) for task in store.tasks for row in store.rows if (row, task) in measured]:
        columns = np.array(measured[row, task]).T
        entries = [mean_entry(values, decimals=1) for values in columns]
        seeds, cells = len(measured[row, task]), len(store.of(row, task))
        if seeds < cells:
            entries[0] = replace(entries[0], note=f"(n={seeds} of {cells})")
        related = rank.get((row, task), np.nan)
        rows.append((row, (words(task), *entries, number(related, signed=True))))
    caption = (
        "How evenly the personalized models serve the clients: test accuracy in percent, every client counting the "
        "same, mean ± standard deviation over seeds. Where the column seen is about as large as equal clients, clients "
        "differ by chance only."
    )
    how = (
        f"n: seeds that finished, if some did not. Tested: clients with at least {LEAST} test samples; the next three "
        "measures are of these. Worst decile: nine clients in ten do better. Bottom 10 %: mean of the worst "
        "tenth. Spread: standard deviation over clients. Seen: from the accuracies as measured. Equal clients: what "
        "the same test sizes would show if all clients had the same accuracy (binomial null, simulated). Shrunk: from "
        "accuracies drawn towards the mean as far as they are chance (beta-binomial). Worse than local: share of "
        "clients (percent) that training alone serves better. ρ: Spearman's correlation of the gain over local with "
        "the amount of training data."
    )
    heads = (
        *(Column(name) for name in ("task", "mean", "tested")),
        *(Column(reading, measure) for measure in MEASURES for reading in _READINGS),
        *(Column(name) for name in ("worse than local", "ρ(gain, size)")),
    )
    return Table("fairness", "Client by client", caption, "Method", heads, tuple(rows), how=how)


def _readings(tested: pd.DataFrame, *address: str) -> list[float]:
    """Each measure as seen, of equal clients, and shrunk; nan for fewer than two clients."""
    if len(tested) < 2:
        return [np.nan] * (len(MEASURES) * len(_READINGS))
    correct, samples = (tested[name].to_numpy(dtype=float) for name in ("correct", "samples"))
    accuracies = (100 * correct / samples, equal_clients(correct, samples, *address), shrunk(correct, samples))
    return [float(measure(values).mean()) for measure in MEASURES.values() for values in accuracies]


def _rank_correlation(gain: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Spearman's correlation of gain and size over all clients and seeds; where neither is constant."""
    from scipy import stats

    return {
        (str(key[0]), str(key[1])): float(stats.spearmanr(group["gain"], group["n_train"]).statistic)
        for key, group in gain.groupby(["row", "task"])
        if group["gain"].nunique() > 1 and group["n_train"].nunique() > 1
    }


def _sizes(store: Store) -> pd.DataFrame:
    """Training samples of every client: row, task, seed, client, n_train."""
    rows = [
        (cell.row, cell.task, cell.seed, client, n_train)
        for cell in store.cells
        if cell.state == "done"
        for client, n_train in enumerate(cell.json("partition")["n_train"])
    ]
    return pd.DataFrame(rows, columns=["row", "task", "seed", "client", "n_train"])
