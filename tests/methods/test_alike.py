"""Methods with an own head or body that are another one without what is their own: in bodies, heads or models."""

from typing import Any

import pytest
import torch

from tests.engine.problems import run, toy

Method = tuple[str, dict[str, Any]]
Row = tuple[str, dict[str, Any], Method, str, dict[str, Any]]

pytestmark = pytest.mark.long

FEDPER: Method = ("fedper", {})
FEDBABU: Method = ("fedbabu", {"fine_tune_epochs": 0})
LOCAL: Method = ("local", {})
FEDREP: Method = ("fedrep", {"head_epochs": 1})
FLUTE = {"simplex": 0.0, "head_decay": 0.0, "feature_decay": 0.0, "head_epochs": 0, "server_lr": 0.0}
FEDAS = {"align_epochs": 0, "fisher": False}

# Method, hyperparameters, the other method, what of the personalized models is compared, settings of both.
SAME: list[Row] = [
    ("fedah", {"head_epochs": 0}, FEDBABU, "body", {}),
    ("fedas", FEDAS, FEDPER, "head", {}),  # own bodies are those before the mean
    ("fedgc", {}, FEDPER, "model", {"sizes": [13, 13, 12]}),  # all clients have all classes
    ("fedgh", {}, LOCAL, "body", {"rounds": 1}),
    ("fedpac", {"lam": 0.0, "collaborate": False}, FEDREP, "model", {}),
    ("fedrep", {"head_epochs": 0}, FEDBABU, "body", {}),
    ("flute", FLUTE, FEDPER, "model", {}),
]
DIFFERENT: list[Row] = [
    ("fedah", {}, FEDBABU, "body", {}),
    ("fedas", {**FEDAS, "align_epochs": 1, "align_lr": 0.1}, FEDPER, "head", {}),
    ("fedas", {**FEDAS, "fisher": True}, FEDPER, "head", {}),
    ("fedgc", {}, FEDPER, "model", {"sizes": [13, 2, 12]}),
    ("fedgh", {}, LOCAL, "body", {}),
    ("fedpac", {"collaborate": False}, FEDREP, "model", {}),
    ("fedpac", {"lam": 0.0}, FEDREP, "model", {}),
    ("fedrep", {}, FEDBABU, "body", {}),
    *(("flute", FLUTE | {name: value}, FEDPER, "model", {})
      for name, value in (("simplex", 0.1), ("feature_decay", 0.01), ("head_epochs", 1), ("server_lr", 0.1))),
]  # fmt: skip


def gap(row: Row) -> float:
    """The largest difference between both methods' models, running statistics included, in three rounds."""
    method, hp, (other, others), part, settings = row
    rounds, models = settings.get("rounds", 3), []
    for name, given in ((method, hp), (other, others)):
        federation = toy(name, hp=given, **{"model": "test_norm", **settings})
        run(federation, rounds)
        whole = federation.evaluator.personal(rounds).values()
        parts = [{"body": w.without("head"), "head": w.part("head"), "model": w}[part] for w in whole]
        models.append(torch.stack([torch.cat([w.weights, w.buffers]) for w in parts]))
    return float((models[0] - models[1]).abs().max())


@pytest.mark.parametrize("row", SAME, ids=str)
def test_the_same_up_to_rounding(row: Row) -> None:
    assert gap(row) < 1e-9


@pytest.mark.parametrize("row", DIFFERENT, ids=str)
def test_not_the_same(row: Row) -> None:
    assert gap(row) > 1e-5
