"""Every default of every method, and where it comes from: a default that changes unseen is another method.

"Ours" is a choice that no paper makes; "card" is the method's file in docs/methods, which says how it was settled. What
follows a name in brackets was taken from a summary of the paper or from public code, not from the paper's own text.
"""

import re
from typing import Any

import pytest

from bench.plugin import METHODS, SERVER_RULES
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES

Sources = dict[str, dict[str, Any]]
"""Defaults by where they come from. One that is None, and is not named, stands for the cell's own setting."""

_ASYNC: Sources = {
    "Xie et al. 2019, sec. 5.2, FedAsync+Poly": {"staleness": "polynomial"},
    "Xie et al. 2019 [0.5]; FedBuff's s(k) = (1 + k)^-1/2": {"poly_a": 0.5},
    "Xie et al. 2019 [10]": {"hinge_a": 10.0},
    "Xie et al. 2019 [4]": {"hinge_b": 4.0},
    "ours: the cell's participation": {"concurrency": None},
}
_FEDASYNC: Sources = _ASYNC | {"Xie et al. 2019 [0.6, halved late]": {"alpha": 0.6}}
_FEDBUFF: Sources = _ASYNC | {
    "Nguyen et al. 2022 [10]": {"buffer": 10},
    "ours: the paper tunes it; 1 is the mean of the buffer": {"eta_g": 1.0},
    "Nguyen et al. 2022, Algorithm 1": {"weights": "equal"},
}
_FEDOPT: Sources = {
    "Reddi et al. 2021, FedAdam": {"kind": "adam"},
    "ours: the paper tunes it (card)": {"eta": 0.01},
    "Reddi et al. 2021 [0.9; FedAdagrad 0] (card)": {"beta1": None},
    "Reddi et al. 2021 [0.99]": {"beta2": 0.99},
    "Reddi et al. 2021 [0.001] (card)": {"tau": 0.001},
}
_FLASH: Sources = {
    "ours (card)": {"eta": 0.01, "tau": 0.001},
    "Panchal et al. 2023 [0.9, FL4Health]": {"beta1": 0.9},
    "Panchal et al. 2023 [0.99, FL4Health]": {"beta2": 0.99},
}
_MOMENTUM: Sources = {
    "Hsu et al. 2019 [0.9]": {"beta": 0.9},
    "Hsu et al. 2019 [1]": {"server_lr": 1.0},
    "ours: heavy ball; Hsu et al. use Nesterov (card)": {"nesterov": False},
}
_LATE: Sources = {
    "SPFL paper, eq. 11": {"equation": 11},
    "SPFL paper: PLGA alone interpolates": {"interpolate": False},
    "released code (docs/methods/lga.md)": {"alpha": 0.8},
    "Xie et al. 2019, as the released code": {"poly_a": 0.5},
}
_SPFL: Sources = {
    "SPFL paper: every 10 rounds": {"gamma": 10},
    "SPFL paper, Algorithm 1's text: two consecutive steps": {"steps_per_batch": 2},
    "SPFL paper: two stages, the last is the last layer": {"stages": (("head",),)},
    "SPFL paper (card)": {"similarity": ("softmax", "softmax")},
    "SPFL paper, eq. 7": {"mix": "updates"},
    "released code: factor 1 (card)": {"scale": "released"},
    "released code: eq. 7's server rate of 0.01 would hardly move a model (card)": {"alpha": 1.0},
    "SPFL paper: fine-tuning is Table 8's alone": {"fine_steps": 0},
    "released evaluator": {"fine_lr": 0.001},
}
_PGFED: Sources = {
    "authors' code": {"mu": 0.1, "lam": 0.01, "coefficients": "client"},
    "PGFed has no momentum": {"beta": 0.0},
}
_FLOCO: Sources = {
    "authors' code": {"endpoints": 10, "tau": 10, "rho": 0.1, "lam": 1.0},
    "Grinwald et al. 2024: Floco+ alone has own copies": {"personal_epochs": 0},
}
_FINE_TUNING: Sources = {"Oh et al. 2022 [5 epochs]": {"fine_tune_epochs": 5}}

DEFAULTS: dict[str, Sources] = {
    "apfl": {"PGFed's code": {"alpha": 0.5}, "Deng et al. 2020": {"adaptive": True}},
    "apple": {"ours (card)": {"mu": 0.1, "fade": 10}},
    "ccvr": {"ours (card)": {"calibration_steps": 500, "calibration_batch": 100}},
    "centralized": {**_FINE_TUNING, "all layers (card)": {"layers": ("",)}},
    "cfl": {"public example (card)": {"eps1": 0.4, "eps2": 1.6}, "ours (card)": {"gamma_max": 0.0}},
    "comet": {
        "COMET, Table III: one of 1 to 4": {"c": 4},
        "COMET, best value": {"lam": 2.0},
        "COMET, best value b'": {"public_batch": 128},
    },
    "ditto": {"Li et al. 2021 [one of 0.1, 1, 2]": {"lam": 1.0}},
    "dsfl": {
        "Itahara et al.: entropy reduction": {"aggregation": "era"},
        "Itahara et al. [0.1]": {"temperature": 0.1},
        "Itahara et al. [5]": {"distil_epochs": 5},
        "Itahara et al. [100]": {"distil_batch": 100},
    },
    "elastic": {
        "Chen et al. 2023 [0.5]": {"tau": 0.5},
        "Chen et al. 2023 [0.95]": {"mu": 0.95},
        "Chen et al. 2023 [30 %]": {"share": 0.3},
    },
    "fd": {
        "ours (card)": {"lam": 1.0},
        "Jeong et al. 2018, Algorithm 1": {"outputs": "probabilities", "teachers": "others"},
    },
    "fedadmm": {"authors' code": {"rho": 0.01, "eta": 1.0}},
    "fedah": {"authors' code": {"eta": 1.0, "head_epochs": 1}},
    "fedala": {
        "Zhang et al. 2023 [authors' code]": {"eta": 1.0},
        "Zhang et al. 2023 [authors' code: 80 %]": {"share": 0.8},
        "Zhang et al. 2023 [p = 1]": {"layers": ("head",)},
        "ours: as PM of the other methods (card)": {"tested": "trained"},
    },
    "fedamp": {"ours (card)": {"sigma": 10.0, "pull": 1.0}, "ours: 1 / N (card)": {"share": None}},
    "fedap": {"authors' code": {"lam": 0.5}, "ours (card)": {"warmup": 5}},
    "fedas": {
        "authors' code: one epoch": {"align_epochs": 1},
        "authors' code": {"align_lr": 0.01},
        "Yang et al. 2024": {"fisher": True},
    },
    "fedasync": _FEDASYNC,
    "fedasync_mix": {"released code of the SPFL paper": {"late": "mix"}, **_LATE},
    "fedavg": {},
    "fedavg_async": {"released code of the SPFL paper": {"late": "as_is"}, **_LATE},
    "fedavg_sync": {"SPFL paper, FedAvg (Sync)": {"late": "drop"}, **_LATE},
    "fedavgm": _MOMENTUM,
    "fedbabu": {"Oh et al. 2022: the head": {"fixed": ("head",)}, **_FINE_TUNING},
    "fedbn": {},
    "fedbuff": _FEDBUFF,
    "fedcac": {"authors' code (card)": {"tau": 0.5, "beta": 100}},
    "fedcp": {"authors' code [5]": {"lam": 5.0}},
    "fedcross": {"Hu et al. 2024 [0.99]": {"alpha": 0.99}, "Hu et al. 2024 (card)": {"collaborator": "lowest"}},
    "feddbe": {"authors' code, Fashion-MNIST": {"kl": 50.0, "momentum": 1.0}},
    "feddf": {
        "ours: at most 1000 (Lin et al.: up to 10000 with an early stop)": {"distil_steps": 1000},
        "Lin et al. 2020 [128]": {"distil_batch": 128},
        "Lin et al. 2020 [Adam, 1e-3]": {"distil_lr": 0.001},
    },
    "feddpa": {
        "authors' code (card)": {"weight": 0.5, "most": 0.5},
        "Yang et al. 2024: instance-wise dynamic weighting": {"dynamic": True},
    },
    "feddyn": {"authors' example for CIFAR-10": {"alpha": 0.01}, "Acar et al. 2021": {"eval_model": "cloud"}},
    "fedem": {"Marfoq et al. 2021 [M = 3]": {"components": 3}},
    "fedex_lora": {},
    "fedfomo": {
        "Zhang et al. 2021, CIFAR: M = 5": {"models": 5},
        "authors' runs": {"explore": 0.3, "explore_decay": 0.05},
    },
    "fedgc": {"ours (card)": {"correction": 0.01}},
    "fedgen": {
        "authors' code": {
            "alpha": 10.0,
            "beta": 10.0,
            "decay": 0.98,
            "diversity": 1.0,
            "generator_steps": 50,
            "generator_batch": 32,
            "generator_decay": 0.01,
        },
        "authors' code, MNIST": {"generator_lr": 0.0003, "hidden": 256, "noise": 32},
    },
    "fedgh": {},
    "fedkd": {"PFLlib [0.95]": {"start": 0.95}, "PFLlib [0.98]": {"end": 0.98}, "ours (card)": {"rounds": 100}},
    "fedl2g": {
        "ours: FedL2G-l, for any architectures": {"guide": "logits"},
        "ours (card)": {"quiz": 0.1},
        "authors' code": {"warmup": 50, "clip": 100.0},
        "authors' script: 0.1 for logits, 100 for features": {"server_lr": None},
    },
    "fedlc": {"ours (card)": {"tau": 1.0}},
    "fedmd": {
        "authors' code": {
            "pretrain_epochs": 25,
            "subset": 5000,
            "distance": "l1",
            "digest_epochs": 1,
            "digest_batch": 256,
        }
    },
    "fedmrl": {"authors' code": {"shared_weight": 1.0, "own_weight": 1.0, "average": "samples", "projector": "kept"}},
    "fedmtl": {"ours (card)": {"lam": 0.1}, "Smith et al. 2017 (card)": {"relation": "learned"}},
    "fednova": {},
    "fedntd": {"ours (card)": {"beta": 1.0, "tau": 1.0}},
    "fedopt": _FEDOPT,
    "fedpcl": {"authors' code": {"tau": 0.07}},
    "fedper": {"Arivazhagan et al. 2019: K_P = 1": {"personal": ("head",)}},
    "fedpac": {
        "ours (card)": {"lam": 1.0},
        "Xu et al. 2023 [1]": {"head_epochs": 1},
        "Xu et al. 2023": {"collaborate": True},
    },
    "fedphp": {"ours (card)": {"lam": 0.05, "mu": 0.9, "rounds": 100}},
    "fedprox": {"Li et al. 2020: one of 0.001 to 1 (card)": {"mu": 0.01}},
    "fedproto": {
        "authors' code [1]": {"lam": 1.0},
        "Tan et al. 2022, eq. 8": {"distance": "means"},
        "Tan et al. 2022, eq. 6 (card)": {"average": "samples"},
        "Tan et al. 2022 (card)": {"predict": "prototype"},
    },
    "fedrep": {"Collins et al. 2021 [10]": {"head_epochs": 10}},
    "fedrod": {
        "Chen and Chao 2022": {"gamma": 1.0},
        "Chen and Chao 2022, linear variant": {"head": "linear"},
        "ours (card)": {"hidden": 16},
        "Chen and Chao 2022: both heads on each batch": {"head_phase": "joint"},
    },
    "fedsa_lora": {"authors' code, GLUE (card)": {"personal": ("head",)}},
    "fedselect": {"authors' code": {"rate": 0.25, "limit": 0.8, "every": 3}},
    "fedthe": {
        "authors' code: balanced softmax": {"gamma": 1.0},
        "authors' code": {"steps": 20},
        "authors' code: ten times the learning rate of 0.01": {"rate": 0.1},
        "authors' example for CIFAR-10": {"personal_epochs": 1},
    },
    "fedtgp": {
        "authors' script [10]": {"lam": 10.0},
        "authors' script [100 epochs] (card)": {"server_steps": 100},
        "authors' script [100]": {"tau": 100.0},
        "authors' code": {"predict": "prototype"},
    },
    "fedupdate": {"ours (card)": {"fine_tune_epochs": 1}},
    "ffa_lora": {},
    "finetune": {**_FINE_TUNING, "all layers (card)": {"layers": ("",)}},
    "flexlora": {"ours: every client has the cell's rank": {"ranks": ()}},
    "floco": _FLOCO,
    "floco_plus": _FLOCO | {"ours: as long as the shared model": {"personal_epochs": None}},
    "flora": {"ours: every client has the cell's rank": {"ranks": ()}},
    "flute": {
        "authors' code": {"simplex": 0.25, "head_decay": 0.0025, "feature_decay": 0.0005, "server_lr": 0.5},
        "as FedRep (card)": {"head_epochs": 10},
    },
    "fml": {"ours (card)": {"alpha": 0.5, "beta": 0.5}},
    "gpfl": {"authors' code, CNN": {"lam": 0.01, "mu": 0.1}},
    "hetlora": {
        "ours: every client has the cell's rank": {"ranks": ()},
        "public code (card)": {"gamma": 0.99, "lam": 0.01},
    },
    "hypcluster": {"COMET, Table III: best value": {"c": 6}},
    "er": {"ours (card)": {"memory": 50}},
    "feddrift": {"authors' example (card)": {"delta": 0.1, "delta_merge": 0.1, "isolation": 1, "models": 4}},
    "flash": {"ours, of clients (card)": {"epochs": 5, "gamma": 0.02}, **_FLASH},
    "ifca": {"ours (card)": {"k": 3}, "Ghosh et al. 2020: whole models": {"shared": ()}},
    "knnper": {
        "Marfoq et al. 2022 [10] (card)": {"k": 10},
        "authors' code": {"scale": 1.0},
        "Marfoq et al. 2022: chosen by each client's validation samples (card)": {"share": None},
    },
    "ktpfl": {
        "authors' code, of targets and students": {"temperature": 10.0},
        "ours (card)": {"lam": 1.0, "eta3": 0.1},
        "authors' code": {"rho": 0.7, "distil_batch": 256},
        "authors' code: 1 to 5": {"distil_epochs": 1},
    },
    "lga": {"SPFL paper, LGA": {"late": "leap"}, **_LATE},
    "lgfedavg": {"Liang et al. 2020: the last layers": {"shared": ("head",)}},
    "local": {"ours: the budget of full participation; PGFed's code has true": {"selected_only": False}},
    "metafed": {"authors' code": {"threshold": 0.6, "lam": 1.0, "pretrain_epochs": 30}},
    "moon": {"Li et al. 2021 [one of 0.1 to 10] (card)": {"mu": 1.0}, "Li et al. 2021 [0.5]": {"tau": 0.5}},
    "mrmtl": {"ours (card)": {"lam": 1.0}},
    "pefll": {
        "authors' code": {"lr": 0.0002, "clip": 50.0, "hidden": 100, "layers": 3},
        "authors' code: 1 + N / 4": {"embedding": None},
        "authors' code, its dense variant": {"embed_hidden": 20},
    },
    "perada": {
        "ours: all layers (card)": {"adapter": ("",)},
        "authors' example": {"lam": 1.0, "distil_steps": 500, "distil_batch": 2048, "distil_lr": 0.001},
    },
    "perfedavg": {
        "Fallah et al. 2020, HF": {"variant": "hf"},
        "public code (FL-bench)": {"alpha": 0.01, "delta": 0.001},
        "Fallah et al. 2020: one step": {"personal_steps": 1},
    },
    "perfedavg_async": {"released code of the SPFL paper": {"late": "as_is", "beta": 0.001}, **_LATE},
    "pfedfda": {"McLaughlin and Su 2024: by cross-validation": {"beta": None}, "authors' code (card)": {"ridge": 1.0}},
    "pfedgraph": {"authors' code": {"alpha": 0.8, "lam": 0.01}},
    "pfedhn": {
        "authors' code": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.001, "clip": 50.0, "hidden": 100, "layers": 3},
        "authors' code: as the network's": {"embedding_lr": None},
        "authors' code: 1 + N / 4": {"embedding": None},
    },
    "pfedla": {"public code (card)": {"lr": 0.005, "embedding": 100, "hidden": 100}},
    "pfedme": {
        "Dinh et al. 2020, MNIST": {"lam": 15.0},
        "Dinh et al. 2020": {"K": 5, "eta": 0.005},
        "Dinh et al. 2020: 1 to 2": {"beta": 1.0},
    },
    "pfedsim": {"ours (card)": {"warmup": 10}},
    "pflda": {"public code (PFLlib)": {"lam": 1.0}},
    "pgfed": _PGFED,
    "pgfed_ce": _PGFED | {"PGFed poster: PGFed-CE (reconstruction)": {"coefficients": "server"}},
    "pgfedmo": _PGFED | {"authors' code, of PGFedMo": {"beta": 0.5}},
    "plga": {"SPFL paper, LGA": {"late": "leap"}, **_LATE, "SPFL paper, PLGA": {"interpolate": True}},
    "scaffold": {"Karimireddy et al. 2020: eta_g = 1": {"server_lr": 1.0}},
    "scd": {
        "SCD, Table 6: the row of Table 1": {"tau": 0.4},
        "SCD, Table 7: the row of Table 1": {"lambda_g": 0.05},
        "SCD, Table 8: the row of Table 1": {"lambda_p": 0.01},
        "SCD, Algorithm 1": {"personal_start": "kept"},
        "ours (card): the paper does not say how spectra become distributions": {"preset": "generalised_kl"},
        "ours (card)": {"normalise": "gen_kl", "fft_norm": "ortho", "params": "trainable"},
        "SCD: the spectrum is truncated (card)": {"order": "truncate_first"},
        "SCD (card): one vector of all weights": {"layout": "flat"},
        "SCD (card)": {"transform": "dft", "reduction": "sum"},
        "SCD (card): the first tau": {"band": "paper"},
        "SCD, Algorithm 1 (card)": {"direction": "student_teacher"},
        "SCD: lambda as it is": {"scale": "one"},
        "ours: no division by zero": {"eps": 1e-12},
        "SCD; the released code has true": {"detach_student": False, "skip_first_batch": False},
        "SCD; the released code has one": {"extra_l2": 0.0},
    },
    "spfl": _SPFL,
    "spfl_w": _SPFL | {"SPFL paper, SPFL-w": {"mix": "weights"}},
    "superfed": {
        "Hahn et al. 2022: MM": {"mixing": "model"},
        "ours (card)": {"start": 10, "lam": 0.5},
        "authors' example": {"nu": 2.0, "mu": 0.01},
    },
}
_LIARS: Sources = {"ours (card)": {"share": 0.2}}
RULES: dict[str, Sources] = {
    "bulyan": _LIARS,
    "centered_clip": {"ours (card)": {"tau": 10.0}, "Karimireddy et al. 2021 [1]": {"iterations": 1}},
    "fedasync": _FEDASYNC,
    "fedbuff": _FEDBUFF,
    "fedopt": _FEDOPT,
    "flash": _FLASH,
    "geometric_median": {"ours (card)": {"iterations": 3}, "Pillutla et al. 2022 [1e-6]": {"nu": 1e-6}},
    "krum": _LIARS,
    "median": {},
    "momentum": _MOMENTUM,
    "multi_krum": _LIARS,
    "norm_clip": {"ours (card)": {"norm": 1.0}},
    "trimmed_mean": _LIARS,
}


def sources(table: Sources) -> dict[str, tuple[Any, str]]:
    """The value of each default, and where it comes from; where two sources have one, the later."""
    return {key: (value, source) for source, values in table.items() for key, value in values.items()}


def check(hyper: Any, table: Sources) -> None:
    """Check that a class of hyperparameters has these defaults and no others."""
    expected = {key: value for key, (value, _) in sources(table).items()}
    found = {key: field.get_default(call_default_factory=True) for key, field in hyper.model_fields.items()}
    assert {key: value for key, value in found.items() if value is not None or key in expected} == expected


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_defaults_of_a_method(name: str) -> None:
    """A new method says here where its defaults come from."""
    check(METHODS.get(name).Hyper, DEFAULTS[name])


@pytest.mark.parametrize("name", SERVER_RULES.names())
def test_defaults_of_a_server_rule(name: str) -> None:
    check(SERVER_RULES.get(name).Hyper, RULES[name])


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_card_names_what_the_defaults_leave_to_it(name: str) -> None:
    cards = ROOT / "docs" / "methods"
    (file,) = re.findall(rf"\[`{name}`\]\(([a-z0-9_]+\.md)\)", (cards / "README.md").read_text(encoding="utf-8"))
    card = (cards / file).read_text(encoding="utf-8")
    left = [key for key, (_, source) in sources(DEFAULTS[name]).items() if source.endswith("(card)")]
    assert [key for key in left if not re.search(rf"\b{key}\b", card)] == []
