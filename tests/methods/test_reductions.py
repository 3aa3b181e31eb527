"""Where a method is another one, and where it only seems so: every line of `SAME` and `DIFFERENT` is a method with some
hyperparameters, the other method, which of their models are compared, and the settings of both.

The models of both, running statistics included, come from the same seed, data and selections. What a setting reduces a
method to is the first thing that a wrong factor, a missing detach or a second draw breaks.
"""

from typing import Any

import pytest

from bench.federation.federation import Federation
from bench.params import Params
from bench.plugin import METHODS
from tests.engine.problems import remarks, run, toy
from tests.methods.reference import PLAIN, PUBLIC

LINEAR, NORM = {"model": "test_linear"}, {"model": "test_norm"}
USERS = {**NORM, "dtype": "float32"}
EQUAL = {**NORM, "sizes": [7, 7, 7]}
FOUR = {**NORM, "sizes": [8] * 4}
ONE = {**NORM, "sizes": [9]}
FIRST, SECOND = {**LINEAR, "rounds": 1}, {**LINEAR, "rounds": 2}
GENERATOR = {"hidden": 5, "noise": 2, "generator_steps": 3, "generator_batch": 6}
AGREEMENT = {"scale": "grad_balance", "lambda_g": 10.0}
ONE_STEP = {**LINEAR, "sizes": [8, 8], "epochs": 1, "batch_size": 8, "rounds": 1}
EXACT_INNER = {"lam": 4.0, "eta": 0.25, "K": 1, "beta": 1.0}
ENDPOINT = {"endpoints": 1, "rho": 0.0, "tau": 1}
DISTILLED = {"distil_steps": 7, "distil_batch": 5, "distil_lr": 0.01}
UNIFORM = {"similarity": ("uniform", "uniform"), "gamma": 2}
LONELY = {"similarity": ("local", "local"), "gamma": None, "steps_per_batch": 1}
LATE = {**NORM, "stragglers": {0: 1, 1: 3}, "rounds": 5}
ASYNC = {
    **LINEAR,
    "server": {"name": "fedasync", "concurrency": 1},
    "rounds": 6,
}  # Ditto's longer rounds change no order
LORA = {**LINEAR, "sizes": [9], "adapters": {"name": "lora", "rank": 2, "alpha": 6.0}}
FEDPROX, DITTO = ("fedprox", {"mu": 0.3}), ("ditto", {})
FEDAVG, FEDBN, LOCAL = ("fedavg", {}), ("fedbn", {}), ("local", {})

Row = tuple[str, dict[str, Any], tuple[str, dict[str, Any]], str, dict[str, Any]]

# Method, hyperparameters, the other method, models ("gm" the generic, "pm" the personalized ones), settings of both.
SAME: list[Row] = [
    ("apfl", {}, FEDAVG, "gm", NORM),
    ("apfl", {"alpha": 0.9}, FEDAVG, "gm", NORM),
    ("apfl", {"alpha": 1.0, "adaptive": False}, FEDAVG, "gm", NORM),
    ("apfl", {"alpha": 1.0, "adaptive": False}, LOCAL, "pm", LINEAR),
    ("comet", {"lam": 0.0}, LOCAL, "pm", {**NORM, "public": PUBLIC}),
    ("ditto", {}, FEDAVG, "gm", ASYNC),
    ("dsfl", {"distil_epochs": 0}, LOCAL, "pm", {**LINEAR, "public": PUBLIC}),
    ("fedala", {"eta": 0.0, "layers": ["head"]}, FEDAVG, "gm", LINEAR),
    ("fedala", {"eta": 0.0, "layers": [""]}, FEDAVG, "gm", LINEAR),
    ("fedala", {"eta": 0.0, "layers": []}, FEDAVG, "gm", LINEAR),
    ("fedamp", {"pull": 0.0}, LOCAL, "pm", NORM),
    ("fedap", {"warmup": 3}, FEDBN, "pm", NORM),
    ("fedap", {"warmup": 0, "lam": 1.0}, LOCAL, "pm", NORM),
    ("fedbabu", {"fixed": (), "fine_tune_epochs": 0}, FEDAVG, "pm", USERS),
    ("fedbn", {}, FEDAVG, "pm", LINEAR),  # without normalisation
    ("fedbn", {}, LOCAL, "pm", ONE),
    ("fedcac", {"tau": 1.0, "beta": 0}, LOCAL, "pm", LINEAR),  # all parameters are critical
    ("fedcac", {"tau": 0.0}, FEDAVG, "gm", NORM),  # none is
    *(("feddf", {"distil_steps": 0}, FEDAVG, "gm", {**s, "dtype": "float32"}) for s in (
        LINEAR, NORM, {**NORM, "batchnorm": "local"})),
    ("feddrift", {"delta": 0.0}, FEDAVG, "pm", NORM),
    *(("fedgen", {**GENERATOR, "alpha": 0.0, "beta": 0.0}, FEDAVG, "gm", {**USERS, **m}) for m in (LINEAR, NORM)),
    ("fedgen", GENERATOR, FEDAVG, "gm", FIRST),  # the server sends no generator yet
    *(("fedmd", {"pretrain_epochs": 0, "digest_epochs": 3}, LOCAL, "pm", {**FIRST, "public": PUBLIC, "dtype": d})
      for d in ("float32", "float64")),  # all start alike: nothing to digest
    ("fedmtl", {"lam": 0.0}, LOCAL, "pm", NORM),
    *(("fedprox", {"mu": 0.0}, FEDAVG, "gm", {**USERS, **m}) for m in (LINEAR, NORM)),
    *(("fedprox", {"mu": 0.5}, FEDAVG, "gm", {**USERS, **m, "steps": 1}) for m in (LINEAR, NORM)),
    *(("fedrod", {"gamma": 0.0}, FEDAVG, "gm", {**USERS, **m}) for m in (LINEAR, NORM)),
    ("fedthe", {"gamma": 0.7}, ("fedrod", {"gamma": 0.7, "head_phase": "after"}), "gm", {**NORM, "participation": 0.5}),
    ("fedthe", {"gamma": 0.0}, FEDAVG, "gm", {**NORM, "participation": 0.5}),
    ("fedupdate", {"fine_tune_epochs": 0}, FEDAVG, "gm pm", NORM),
    ("fedupdate", {"fine_tune_steps": 0}, FEDAVG, "gm pm", NORM),
    ("fedupdate", {}, FEDAVG, "gm", NORM),
    ("floco_plus", {**ENDPOINT, "lam": 0.0}, FEDAVG, "gm", NORM),
    ("fedasync_mix", {"alpha": 1.0, "poly_a": 0.0}, ("fedavg_async", {}), "gm pm", LATE),
    ("hypcluster", {"c": 1}, FEDAVG, "pm", NORM),
    ("ifca", {"k": 1}, FEDAVG, "pm", NORM),
    ("ifca", {"k": 3}, ("hypcluster", {"c": 3}), "pm", NORM),
    ("knnper", {"share": 0.5}, FEDAVG, "gm", NORM),
    *(("ktpfl", {"distil_epochs": 0}, LOCAL, "pm", {**m, "public": PUBLIC}) for m in (LINEAR, NORM)),
    *((name, {}, FEDAVG, "gm", {**NORM, "participation": 0.6})
      for name in ("lga", "plga", "fedavg_async", "fedavg_sync", "fedasync_mix")),  # without stragglers
    ("mrmtl", {"lam": 0.0}, LOCAL, "pm", NORM),
    ("perada", {"lam": 0.7, "distil_steps": 0}, ("ditto", {"lam": 0.7}), "gm pm", NORM),
    ("perada", DISTILLED, ("feddf", DISTILLED), "gm", LINEAR),
    *(("perfedavg", {"variant": v, "alpha": 0.0}, FEDAVG, "gm", EQUAL) for v in ("fo", "hf")),
    ("perfedavg_async", {"beta": 0.0}, ("fedavg_async", {}), "gm pm", LATE),
    ("perfedavg_async", {"beta": 0.0}, FEDAVG, "gm", {**NORM, "participation": 0.6}),
    ("pfedsim", {"warmup": 3}, FEDAVG, "pm", NORM),
    *((name, hp, FEDAVG, "gm", s) for name in ("pgfed", "pgfedmo", "pgfed_ce")
      for hp, s in (({}, FIRST), ({"mu": 0.0}, NORM))),
    ("pgfedmo", {"beta": 0.0}, ("pgfed", {}), "gm pm", LINEAR),
    ("plga", {}, ("lga", {}), "gm", LATE),
    *(("scaffold", {}, FEDAVG, "gm", {**EQUAL, **m, "momentum": 0.0, "dtype": "float32", "rounds": 1})
      for m in (LINEAR, NORM)),
    *(("scd", {**AGREEMENT, "normalise": n}, FEDAVG, "gm", {**ONE_STEP, "dtype": d})
      for n in ("simplex", "gen_kl", "mean") for d in ("float32", "float64")),  # both models are the initial one
    ("spfl_w", LONELY, LOCAL, "pm", NORM),
    ("superfed", {"mu": 0.0, "start": 3}, FEDAVG, "gm", NORM),
    ("superfed", {"mu": 0.3, "start": 3}, FEDPROX, "gm", NORM),
]  # fmt: skip
"""Bit for bit."""

NEAR: list[Row] = [
    ("apple", {"p_lr": 0.0}, LOCAL, "pm", ONE),
    ("comet", {"c": 5, "lam": 50.0}, LOCAL, "pm", {**LINEAR, "steps": 1, "public": PUBLIC}),  # the target is one's own
    ("elastic", {"tau": 1.0, "mu": 1.0}, FEDAVG, "gm", NORM),
    ("fd", {"lam": 0.0}, LOCAL, "pm", NORM),
    ("fd", {}, LOCAL, "pm", FIRST),  # nothing is known yet
    ("fedavgm", {"beta": 0.0}, FEDAVG, "gm", NORM),
    *(("fedavgm", {"beta": b}, FEDAVG, "gm", {**NORM, "rounds": 1}) for b in (0.3, 0.9)),
    ("fedcross", {"alpha": 0.5}, FEDAVG, "gm", {**NORM, "sizes": [8, 8]}),
    ("feddbe", {"kl": 0.0, "mean_lr": 0.0}, FEDAVG, "gm", NORM),
    ("feddbe", {}, FEDAVG, "gm", FIRST),
    ("fedlc", {"tau": 0.0}, FEDAVG, "gm", NORM),
    ("fedmd", {"pretrain_epochs": 0, "distance": "mse"}, LOCAL, "pm", {**FIRST, "public": PUBLIC}),
    ("fednova", {}, FEDAVG, "gm", {**NORM, "steps": 3}),
    ("fednova", {}, FEDAVG, "gm", {**PLAIN, **FIRST, "steps": 4, "grad_clip": 0.01, "weight_decay": 0.1}),
    ("fedntd", {"beta": 0.0}, FEDAVG, "gm", NORM),
    ("fedntd", {"beta": 5.0}, FEDAVG, "gm", {**LINEAR, "steps": 1}),  # student and teacher agree
    *(("fedphp", {"lam": 0.0, "mu": mu, "rounds": 2}, FEDAVG, "gm", NORM) for mu in (0.9, 0.0)),
    ("fedproto", {"lam": 0.0, "predict": "head"}, LOCAL, "pm", NORM),
    ("fedproto", {}, LOCAL, "pm", FIRST),
    ("fedsa_lora", {}, FEDAVG, "pm", LORA),
    ("fedselect", {"rate": 0.0, "every": 1}, FEDAVG, "gm", EQUAL),
    ("fedtgp", {"lam": 0.0}, LOCAL, "pm", NORM),
    ("floco_plus", {**ENDPOINT, "lam": 0.0}, LOCAL, "pm", NORM),
    ("floco_plus", {**ENDPOINT, "lam": 1.0}, DITTO, "pm", NORM),
    ("fml", {"alpha": 1.0, "beta": 0.5}, LOCAL, "pm", NORM),
    ("fml", {"alpha": 0.5, "beta": 1.0}, FEDAVG, "gm", NORM),
    ("hetlora", {"gamma": 1.0, "lam": 5.0}, FEDAVG, "gm", LORA),
    ("moon", {"mu": 0.0}, FEDAVG, "gm", NORM),
    ("moon", {}, FEDAVG, "gm", FIRST),  # all three models are one
    ("pfedme", EXACT_INNER, FEDAVG, "gm", {**LINEAR, "momentum": 0.0}),
    ("spfl", LONELY, LOCAL, "pm", NORM),
    *((name, {**UNIFORM, "steps_per_batch": 1}, FEDAVG, "pm", FOUR) for name in ("spfl", "spfl_w")),
]  # fmt: skip
"""Up to rounding: the formula takes another way to the same number."""

DIFFERENT: list[Row] = [
    ("comet", {"c": 5, "lam": 50.0}, LOCAL, "pm", {**LINEAR, "steps": 2, "public": PUBLIC}),
    ("ditto", {}, ("ditto", {"lam": 0.0}), "pm", ASYNC),
    ("elastic", {"tau": 1.0, "mu": 0.5}, FEDAVG, "gm", NORM),
    ("fd", {"lam": 1.0}, LOCAL, "pm", NORM),
    ("fedala", {"layers": [""]}, FEDAVG, "gm", LINEAR),
    ("fedala", {"layers": [""]}, LOCAL, "pm", LINEAR),
    ("fedamp", {"pull": 1.0}, LOCAL, "pm", NORM),  # a public implementation whose pull has no gradient is Local
    ("fedap", {"warmup": 3}, FEDBN, "pm", {**NORM, "rounds": 4}),
    ("fedap", {"warmup": 0, "lam": 0.9}, LOCAL, "pm", NORM),
    ("fedavgm", {"beta": 0.0, "server_lr": 0.5}, FEDAVG, "gm", LINEAR),
    ("fedbn", {}, FEDAVG, "pm", NORM),
    ("fedcac", {"tau": 1.0}, LOCAL, "pm", LINEAR),
    ("fedcac", {"tau": 0.5, "beta": 0}, LOCAL, "pm", LINEAR),
    ("fedcross", {"alpha": 0.9}, FEDAVG, "gm", {**NORM, "sizes": [8, 8]}),
    ("feddbe", {"kl": 1.0, "mean_lr": 0.0}, FEDAVG, "gm", NORM),
    ("feddbe", {"kl": 0.0, "mean_lr": 0.1}, FEDAVG, "gm", NORM),
    ("fedgen", GENERATOR, FEDAVG, "gm", SECOND),
    ("fedlc", {"tau": 1.0}, FEDAVG, "gm", NORM),
    ("fedmd", {"pretrain_epochs": 0, "digest_epochs": 3}, LOCAL, "pm", {**SECOND, "public": PUBLIC}),
    ("fedmtl", {"lam": 0.5}, LOCAL, "pm", NORM),  # a public implementation whose penalty has no gradient is Local
    ("fednova", {}, FEDAVG, "gm", NORM),
    ("fedntd", {"beta": 5.0}, FEDAVG, "gm", {**LINEAR, "steps": 3}),
    ("fedphp", {"lam": 0.3, "mu": 0.0, "rounds": 2}, FEDAVG, "gm", NORM),
    ("fedprox", {"mu": 0.5}, FEDAVG, "gm", {**USERS, "steps": 2}),
    ("fedproto", {"lam": 1.0, "predict": "head"}, LOCAL, "pm", NORM),
    ("fedrod", {}, FEDAVG, "gm", USERS),
    ("fedselect", {"rate": 0.5, "every": 1}, FEDAVG, "gm", EQUAL),
    ("fedtgp", {"lam": 1.0}, LOCAL, "pm", NORM),
    ("fedupdate", {}, FEDAVG, "pm", NORM),
    ("floco", {"endpoints": 3}, FEDAVG, "gm", LINEAR),
    ("fml", {"alpha": 1.0, "beta": 0.5}, FEDAVG, "gm", NORM),
    ("fml", {"alpha": 0.5, "beta": 1.0}, LOCAL, "pm", NORM),
    ("moon", {}, FEDAVG, "gm", SECOND),
    ("pfedsim", {"warmup": 3}, FEDAVG, "pm", {**NORM, "rounds": 4}),
    *((name, {}, FEDAVG, "gm", SECOND) for name in ("pgfed", "pgfedmo", "pgfed_ce")),
    ("plga", {}, ("lga", {}), "pm", LATE),
    ("scaffold", {}, FEDAVG, "gm", {**EQUAL, "momentum": 0.0, "rounds": 2}),
    ("scd", AGREEMENT, FEDAVG, "gm", {**ONE_STEP, "rounds": 3}),
    ("superfed", {"mu": 0.0, "start": 2}, FEDAVG, "gm", NORM),
    ("superfed", {"mu": 0.3, "start": 2}, FEDPROX, "gm", NORM),
]  # fmt: skip

ANNOUNCED = {
    "comet", "dsfl", "fedala", "fedavgm", "fedbabu", "feddf", "fedgen", "fedprox", "fedrod", "ktpfl", "moon",
}  # fmt: skip
"""Their cells say which method they are, where a hyperparameter and not the data or the round makes them so."""


def models(federation: Federation, which: str) -> list[Params]:
    """The generic model, or the personalized ones; where a method trains none, the generic one for each client."""
    evaluator, version = federation.evaluator, federation.version
    trains = federation.method.trains
    if which == "pm" and trains != "gm":
        return list(evaluator.personal(version).values())
    generic = evaluator.generic(version, evaluator.personal(version) if trains == "pm" else {})
    assert generic is not None
    return [generic] * (len(federation.clients.ids) if which == "pm" else 1)


def gaps(row: Row) -> tuple[list[float], Federation]:
    """The largest differences between a method's models and the other's."""
    method, hp, (other, others), which, settings = row
    rounds = settings.get("rounds", 3)
    a, b = (toy(name, hp=given, **settings) for name, given in ((method, hp), (other, others)))
    run(a, rounds)
    run(b, rounds)
    pairs = [pair for one in which.split() for pair in zip(models(a, one), models(b, one), strict=True)]
    tensors = [(x, y) for p, q in pairs for x, y in ((p.weights, q.weights), (p.buffers, q.buffers)) if x.numel()]
    return [float((x - y).abs().max()) for x, y in tensors], a


def rows(table: list[Row]) -> list[Any]:
    names = [f"{method}, {hp} and {other}: {which}" for method, hp, (other, _), which, _ in table]
    return [pytest.param(row, id=f"{name} {i}") for i, (row, name) in enumerate(zip(table, names, strict=True))]


def check_that_it_says_so(row: Row, federation: Federation) -> None:
    """A hyperparameter that is 0, or names no layer, is announced by the methods that say what it makes of them."""
    method, hp, *_ = row
    if method in ANNOUNCED and any(value in (0, ()) for value in hp.values() if not isinstance(value, list)):
        assert remarks(federation)


@pytest.mark.parametrize("row", rows(SAME))
def test_the_same_to_the_last_bit(row: Row) -> None:
    found, federation = gaps(row)
    assert max(found) == 0
    check_that_it_says_so(row, federation)


@pytest.mark.parametrize("row", rows(NEAR))
def test_the_same_up_to_rounding(row: Row) -> None:
    found, federation = gaps(row)
    assert max(found) < 1e-9
    check_that_it_says_so(row, federation)


@pytest.mark.parametrize("row", rows(DIFFERENT))
def test_not_the_same(row: Row) -> None:
    found, federation = gaps(row)
    assert max(found) > 1e-5
    assert row[0] not in ANNOUNCED or not remarks(federation)


@pytest.mark.parametrize(
    ("method", "hp", "says"),
    [
        ("dsfl", {"distil_epochs": 0}, "those of Local"),
        ("fedasync", {"alpha": 0.0}, "never moves"),
        ("fedasync_mix", {"alpha": 0.0}, "current generic model"),
        ("fedcac", {"beta": 0.0, "tau": 1.0}, "those of Local"),
        ("fedfomo", {"models": 0}, "Local"),
        ("fedmd", {"digest_epochs": 0}, "Local"),
        ("hypcluster", {"c": 1}, "FedAvg"),
        ("ktpfl", {"eta3": 0.0}, "equal"),
        ("perfedavg", {"alpha": 0.0}, "FedAvg"),
        ("perfedavg_async", {"beta": 0.0}, "FedAvg"),
        ("pfedfda", {"beta": 0.0}, "stay what they were"),
        ("pfedme", {"beta": 0.0}, "generic model"),
        ("pfedme", {"lam": 0.0}, "generic model"),
    ],
)
def test_settings_that_undo_a_method_are_announced_and_defaults_are_not(
    method: str, hp: dict[str, Any], says: str
) -> None:
    kind = METHODS.get(method).Hyper
    assert says in kind(**hp).degenerate()[0]
    assert kind().degenerate() == []
