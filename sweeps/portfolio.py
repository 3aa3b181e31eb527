"""The methods that `bench decide` compares, chosen by how different the sites are, and the study that tunes them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.settings import Settings
from reports.decision.sentences import PLAIN
from sweeps.budget import TUNING_SEEDS

FEW = ("local", "fedavg", "finetune")
"""The methods that every decision needs."""
_LABELS, _FEATURES = 0.2, 0.7  # mean label distance and feature score from which sites count as different
_FACTOR = 10.0  # from the grid's learning rate to either end of its range
_NOT_OF_GRID = {
    "method", "label", "case", "hp", "server", "dataset", "dataset_options", "alpha", "seed", "protocol", "rounds",
}  # fmt: skip


def portfolio(sites: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Choose the methods: three that every decision needs and five of different kinds.

    Args:
        sites: as `bench data` describes them.

    Returns:
        By method, its kind and why it is tried. Sites that disagree on what follows from equal inputs show it neither
        in labels nor in features, so that kinds for such sites are always there. No method that chooses by validation
        samples itself, as kNN-Per its share: they choose among methods, too, and would flatter it.
    """
    labels, features = (_mean(sites, key) for key in ("label_distance", "feature_score"))
    differ = f"shares of classes differ: mean label distance {labels:.2f}"
    reasons = {
        "local": "all others are compared with it",
        "fedavg": "the simplest way to train together",
        "finetune": "the simplest way to personal models",
        "ditto": "inputs need not be alike",
        "ifca": "for groups that agree among themselves, which neither labels nor features show",
        "apfl": "each site finds out how much of the common model serves it",
    }
    if labels >= _LABELS:
        reasons |= {"fedrep": differ, "fedrod": differ}
    else:
        reasons["fedper"] = f"shares of classes are alike: mean label distance {labels:.2f}"
        inputs = f"mean feature score {features:.2f}: inputs"
        reasons |= {"lgfedavg": f"{inputs} differ"} if features >= _FEATURES else {"fedprox": f"{inputs} are alike"}
    return {name: f"{PLAIN[name]}; {reason}" for name, reason in reasons.items()}


def _mean(sites: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean over sites, weighted by their training samples; 0 where nothing is known."""
    known = [(site["train"], site[key]) for site in sites if site[key] is not None and not math.isnan(site[key])]
    total = sum(size for size, _ in known)
    return float(sum(size * value for size, value in known) / total) if total else 0.0


def study_of_decision(
    name: str, cell: Settings, methods: Sequence[str], *, rounds: int, trials: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """The content of the study file that tunes the methods and reports the chosen settings.

    Args:
        name: of the study.
        cell: settings of one cell: its data, its partition, its model and its training.
        methods: names.
        rounds, trials: of each method.
        seeds: of the reported runs.
    """
    options = dict(cell.dataset_options)
    dataset: dict[str, Any] = {"name": cell.dataset}
    if label := options.pop("name", ""):
        dataset["label"] = label
    common = cell.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_OF_GRID)
    grid = {
        "methods": list(methods),
        "datasets": [{**dataset, **options}],
        **({"alphas": [cell.alpha]} if cell.alpha is not None else {}),
        **common,
        "rounds": rounds,
    }
    low, high = cell.lr / _FACTOR, cell.lr * _FACTOR
    return {
        "name": name,
        "description": "Should these sites train together? What `bench decide` ran.",
        "grid": grid,
        "space": {"lr": {"low": low, "high": high, "log": True}},
        "trials": trials,
        "seeds": list(TUNING_SEEDS),
        "final_seeds": [],
        "report_seeds": list(seeds),
    }
