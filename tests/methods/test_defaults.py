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

CELL = "ours: None is the cell's own setting"
_ASYNC = {
    "staleness": ("polynomial", "Xie et al. 2019, sec. 5.2, FedAsync+Poly"),
    "poly_a": (0.5, "Xie et al. 2019 [0.5]; FedBuff's s(k) = (1 + k)^-1/2"),
    "hinge_a": (10.0, "Xie et al. 2019 [10]"),
    "hinge_b": (4.0, "Xie et al. 2019 [4]"),
    "concurrency": (None, "ours: the cell's participation"),
}
_FEDASYNC = _ASYNC | {"alpha": (0.6, "Xie et al. 2019 [0.6, halved late]")}
_FEDBUFF = _ASYNC | {
    "buffer": (10, "Nguyen et al. 2022 [10]"),
    "eta_g": (1.0, "ours: the paper tunes it; 1 is the mean of the buffer"),
    "weights": ("equal", "Nguyen et al. 2022, Algorithm 1"),
}
_FEDOPT = {
    "kind": ("adam", "Reddi et al. 2021, FedAdam"),
    "eta": (0.01, "ours: the paper tunes it (card)"),
    "beta1": (None, "Reddi et al. 2021 [0.9; FedAdagrad 0] (card)"),
    "beta2": (0.99, "Reddi et al. 2021 [0.99]"),
    "tau": (0.001, "Reddi et al. 2021 [0.001] (card)"),
}
_FLASH = {
    "eta": (0.01, "ours (card)"),
    "beta1": (0.9, "Panchal et al. 2023 [0.9, FL4Health]"),
    "beta2": (0.99, "Panchal et al. 2023 [0.99, FL4Health]"),
    "tau": (0.001, "ours (card)"),
}
_MOMENTUM = {
    "beta": (0.9, "Hsu et al. 2019 [0.9]"),
    "server_lr": (1.0, "Hsu et al. 2019 [1]"),
    "nesterov": (False, "ours: heavy ball; Hsu et al. use Nesterov (card)"),
}
_LATE = {
    "equation": (11, "SPFL paper, eq. 11"),
    "interpolate": (False, "SPFL paper: PLGA alone interpolates"),
    "alpha": (0.8, "released code (docs/methods/lga.md)"),
    "poly_a": (0.5, "Xie et al. 2019, as the released code"),
    "beta": (None, CELL),
}
_SPFL = {
    "gamma": (10, "SPFL paper: every 10 rounds"),
    "steps_per_batch": (2, "SPFL paper, Algorithm 1's text: two consecutive steps"),
    "stages": ((("head",),), "SPFL paper: two stages, the last is the last layer"),
    "similarity": (("softmax", "softmax"), "SPFL paper (card)"),
    "mix": ("updates", "SPFL paper, eq. 7"),
    "scale": ("released", "released code: factor 1 (card)"),
    "alpha": (1.0, "released code: eq. 7's server rate of 0.01 would hardly move a model (card)"),
    "fine_steps": (0, "SPFL paper: fine-tuning is Table 8's alone"),
    "fine_lr": (0.001, "released evaluator"),
    "fine_batch": (None, CELL),
}
_PGFED = {
    "mu": (0.1, "authors' code"),
    "lam": (0.01, "authors' code"),
    "beta": (0.0, "PGFed has no momentum"),
    "coefficients": ("client", "authors' code"),
}
_FLOCO = {
    "endpoints": (10, "authors' code"),
    "tau": (10, "authors' code"),
    "rho": (0.1, "authors' code"),
    "personal_epochs": (0, "Grinwald et al. 2024: Floco+ alone has own copies"),
    "lam": (1.0, "authors' code"),
}
_FINE_TUNING = {"fine_tune_epochs": (5, "Oh et al. 2022 [5 epochs]"), "fine_tune_lr": (None, CELL)}

DEFAULTS: dict[str, dict[str, tuple[Any, str]]] = {
    "apfl": {"alpha": (0.5, "PGFed's code"), "adaptive": (True, "Deng et al. 2020")},
    "apple": {"mu": (0.1, "ours (card)"), "fade": (10, "ours (card)"), "p_lr": (None, CELL)},
    "ccvr": {"calibration_steps": (500, "ours (card)"), "calibration_batch": (100, "ours (card)")},
    "centralized": {**_FINE_TUNING, "layers": (("",), "all layers (card)")},
    "cfl": {
        "eps1": (0.4, "public example (card)"),
        "eps2": (1.6, "public example (card)"),
        "gamma_max": (0.0, "ours (card)"),
    },
    "comet": {
        "c": (4, "COMET, Table III: one of 1 to 4"),
        "lam": (2.0, "COMET, best value"),
        "public_batch": (128, "COMET, best value b'"),
    },
    "ditto": {
        "lam": (1.0, "Li et al. 2021 [one of 0.1, 1, 2]"),
        "personal_epochs": (None, CELL),
        "personal_lr": (None, CELL),
    },
    "dsfl": {
        "aggregation": ("era", "Itahara et al.: entropy reduction"),
        "temperature": (0.1, "Itahara et al. [0.1]"),
        "distil_epochs": (5, "Itahara et al. [5]"),
        "distil_batch": (100, "Itahara et al. [100]"),
    },
    "elastic": {
        "tau": (0.5, "Chen et al. 2023 [0.5]"),
        "mu": (0.95, "Chen et al. 2023 [0.95]"),
        "share": (0.3, "Chen et al. 2023 [30 %]"),
    },
    "fd": {
        "lam": (1.0, "ours (card)"),
        "outputs": ("probabilities", "Jeong et al. 2018, Algorithm 1"),
        "teachers": ("others", "Jeong et al. 2018, Algorithm 1"),
    },
    "fedadmm": {"rho": (0.01, "authors' code"), "eta": (1.0, "authors' code")},
    "fedah": {
        "eta": (1.0, "authors' code"),
        "head_epochs": (1, "authors' code"),
        "body_epochs": (None, CELL),
    },
    "fedala": {
        "eta": (1.0, "Zhang et al. 2023 [authors' code]"),
        "share": (0.8, "Zhang et al. 2023 [authors' code: 80 %]"),
        "layers": (("head",), "Zhang et al. 2023 [p = 1]"),
        "tested": ("trained", "ours: as PM of the other methods (card)"),
    },
    "fedamp": {
        "sigma": (10.0, "ours (card)"),
        "share": (None, "ours: 1 / N (card)"),
        "pull": (1.0, "ours (card)"),
    },
    "fedap": {"lam": (0.5, "authors' code"), "warmup": (5, "ours (card)")},
    "fedas": {
        "align_epochs": (1, "authors' code: one epoch"),
        "align_lr": (0.01, "authors' code"),
        "fisher": (True, "Yang et al. 2024"),
    },
    "fedasync": _FEDASYNC,
    "fedasync_mix": {"late": ("mix", "released code of the SPFL paper"), **_LATE},
    "fedavg": {},
    "fedavg_async": {"late": ("as_is", "released code of the SPFL paper"), **_LATE},
    "fedavg_sync": {"late": ("drop", "SPFL paper, FedAvg (Sync)"), **_LATE},
    "fedavgm": _MOMENTUM,
    "fedbabu": {"fixed": (("head",), "Oh et al. 2022: the head"), **_FINE_TUNING},
    "fedbn": {},
    "fedbuff": _FEDBUFF,
    "fedcac": {"tau": (0.5, "authors' code (card)"), "beta": (100, "authors' code (card)")},
    "fedcp": {"lam": (5.0, "authors' code [5]")},
    "fedcross": {"alpha": (0.99, "Hu et al. 2024 [0.99]"), "collaborator": ("lowest", "Hu et al. 2024 (card)")},
    "feddbe": {
        "kl": (50.0, "authors' code, Fashion-MNIST"),
        "momentum": (1.0, "authors' code, Fashion-MNIST"),
        "mean_lr": (None, CELL),
    },
    "feddf": {
        "distil_steps": (1000, "ours: at most 1000 (Lin et al.: up to 10000 with an early stop)"),
        "distil_batch": (128, "Lin et al. 2020 [128]"),
        "distil_lr": (0.001, "Lin et al. 2020 [Adam, 1e-3]"),
    },
    "feddpa": {
        "weight": (0.5, "authors' code (card)"),
        "most": (0.5, "authors' code (card)"),
        "dynamic": (True, "Yang et al. 2024: instance-wise dynamic weighting"),
    },
    "feddyn": {"alpha": (0.01, "authors' example for CIFAR-10"), "eval_model": ("cloud", "Acar et al. 2021")},
    "fedem": {"components": (3, "Marfoq et al. 2021 [M = 3]")},
    "fedex_lora": {},
    "fedfomo": {
        "models": (5, "Zhang et al. 2021, CIFAR: M = 5"),
        "explore": (0.3, "authors' runs"),
        "explore_decay": (0.05, "authors' runs"),
    },
    "fedgc": {"correction": (0.01, "ours (card)")},
    "fedgen": {
        "alpha": (10.0, "authors' code"),
        "beta": (10.0, "authors' code"),
        "decay": (0.98, "authors' code"),
        "diversity": (1.0, "authors' code"),
        "generator_steps": (50, "authors' code"),
        "generator_batch": (32, "authors' code"),
        "generator_lr": (0.0003, "authors' code, MNIST"),
        "generator_decay": (0.01, "authors' code"),
        "hidden": (256, "authors' code, MNIST"),
        "noise": (32, "authors' code, MNIST"),
    },
    "fedgh": {"server_lr": (None, CELL)},
    "fedkd": {
        "start": (0.95, "PFLlib [0.95]"),
        "end": (0.98, "PFLlib [0.98]"),
        "rounds": (100, "ours (card)"),
    },
    "fedl2g": {
        "guide": ("logits", "ours: FedL2G-l, for any architectures"),
        "quiz": (0.1, "ours (card)"),
        "warmup": (50, "authors' code"),
        "server_lr": (None, "authors' script: 0.1 for logits, 100 for features"),
        "clip": (100.0, "authors' code"),
    },
    "fedlc": {"tau": (1.0, "ours (card)")},
    "fedmd": {
        "pretrain_epochs": (25, "authors' code"),
        "subset": (5000, "authors' code"),
        "distance": ("l1", "authors' code"),
        "digest_epochs": (1, "authors' code"),
        "digest_batch": (256, "authors' code"),
    },
    "fedmrl": {
        "shared_weight": (1.0, "authors' code"),
        "own_weight": (1.0, "authors' code"),
        "average": ("samples", "authors' code"),
        "projector": ("kept", "authors' code"),
    },
    "fedmtl": {"lam": (0.1, "ours (card)"), "relation": ("learned", "Smith et al. 2017 (card)")},
    "fednova": {},
    "fedntd": {"beta": (1.0, "ours (card)"), "tau": (1.0, "ours (card)")},
    "fedopt": _FEDOPT,
    "fedpcl": {"tau": (0.07, "authors' code")},
    "fedper": {"personal": (("head",), "Arivazhagan et al. 2019: K_P = 1")},
    "fedpac": {
        "lam": (1.0, "ours (card)"),
        "head_epochs": (1, "Xu et al. 2023 [1]"),
        "collaborate": (True, "Xu et al. 2023"),
    },
    "fedphp": {"lam": (0.05, "ours (card)"), "mu": (0.9, "ours (card)"), "rounds": (100, "ours (card)")},
    "fedprox": {"mu": (0.01, "Li et al. 2020: one of 0.001 to 1 (card)")},
    "fedproto": {
        "lam": (1.0, "authors' code [1]"),
        "distance": ("means", "Tan et al. 2022, eq. 8"),
        "average": ("samples", "Tan et al. 2022, eq. 6 (card)"),
        "predict": ("prototype", "Tan et al. 2022 (card)"),
    },
    "fedrep": {"head_epochs": (10, "Collins et al. 2021 [10]"), "body_epochs": (None, CELL)},
    "fedrod": {
        "gamma": (1.0, "Chen and Chao 2022"),
        "head": ("linear", "Chen and Chao 2022, linear variant"),
        "hidden": (16, "ours (card)"),
        "personal_lr": (None, CELL),
        "head_phase": ("joint", "Chen and Chao 2022: both heads on each batch"),
        "personal_epochs": (None, CELL),
    },
    "fedsa_lora": {"personal": (("head",), "authors' code, GLUE (card)")},
    "fedselect": {
        "rate": (0.25, "authors' code"),
        "limit": (0.8, "authors' code"),
        "every": (3, "authors' code"),
    },
    "fedthe": {
        "gamma": (1.0, "authors' code: balanced softmax"),
        "steps": (20, "authors' code"),
        "rate": (0.1, "authors' code: ten times the learning rate of 0.01"),
        "personal_epochs": (1, "authors' example for CIFAR-10"),
    },
    "fedtgp": {
        "lam": (10.0, "authors' script [10]"),
        "server_steps": (100, "authors' script [100 epochs] (card)"),
        "server_lr": (None, CELL),
        "tau": (100.0, "authors' script [100]"),
        "predict": ("prototype", "authors' code"),
    },
    "fedupdate": {
        "fine_tune_epochs": (1, "ours (card)"),
        "fine_tune_steps": (None, CELL),
        "fine_tune_lr": (None, CELL),
    },
    "ffa_lora": {},
    "finetune": {**_FINE_TUNING, "layers": (("",), "all layers (card)")},
    "flexlora": {"ranks": ((), "ours: every client has the cell's rank")},
    "floco": _FLOCO,
    "floco_plus": _FLOCO | {"personal_epochs": (None, CELL)},
    "flora": {"ranks": ((), "ours: every client has the cell's rank")},
    "flute": {
        "simplex": (0.25, "authors' code"),
        "head_decay": (0.0025, "authors' code"),
        "feature_decay": (0.0005, "authors' code"),
        "head_epochs": (10, "as FedRep (card)"),
        "server_lr": (0.5, "authors' code"),
    },
    "fml": {"alpha": (0.5, "ours (card)"), "beta": (0.5, "ours (card)")},
    "gpfl": {"lam": (0.01, "authors' code, CNN"), "mu": (0.1, "authors' code, CNN")},
    "hetlora": {
        "ranks": ((), "ours: every client has the cell's rank"),
        "gamma": (0.99, "public code (card)"),
        "lam": (0.01, "public code (card)"),
    },
    "hypcluster": {"c": (6, "COMET, Table III: best value")},
    "er": {"memory": (50, "ours (card)")},
    "feddrift": {
        "delta": (0.1, "authors' example (card)"),
        "delta_merge": (0.1, "authors' example (card)"),
        "isolation": (1, "authors' example (card)"),
        "models": (4, "authors' example (card)"),
    },
    "flash": {"epochs": (5, "ours (card)"), "gamma": (0.02, "ours (card)"), **_FLASH},
    "ifca": {"k": (3, "ours (card)"), "shared": ((), "Ghosh et al. 2020: whole models")},
    "knnper": {
        "k": (10, "Marfoq et al. 2022 [10] (card)"),
        "scale": (1.0, "authors' code"),
        "share": (None, "Marfoq et al. 2022: chosen by each client's validation samples (card)"),
    },
    "ktpfl": {
        "temperature": (10.0, "authors' code, of targets and students"),
        "lam": (1.0, "ours (card)"),
        "rho": (0.7, "authors' code"),
        "eta3": (0.1, "ours (card)"),
        "distil_epochs": (1, "authors' code: 1 to 5"),
        "distil_batch": (256, "authors' code"),
    },
    "lga": {"late": ("leap", "SPFL paper, LGA"), **_LATE},
    "lgfedavg": {"shared": (("head",), "Liang et al. 2020: the last layers")},
    "local": {"selected_only": (False, "ours: the budget of full participation; PGFed's code has true")},
    "metafed": {
        "threshold": (0.6, "authors' code"),
        "lam": (1.0, "authors' code"),
        "pretrain_epochs": (30, "authors' code"),
        "personal_epochs": (None, CELL),
    },
    "moon": {"mu": (1.0, "Li et al. 2021 [one of 0.1 to 10] (card)"), "tau": (0.5, "Li et al. 2021 [0.5]")},
    "mrmtl": {"lam": (1.0, "ours (card)")},
    "pefll": {
        "lr": (0.0002, "authors' code"),
        "clip": (50.0, "authors' code"),
        "embedding": (None, "authors' code: 1 + N / 4"),
        "hidden": (100, "authors' code"),
        "layers": (3, "authors' code"),
        "embed_hidden": (20, "authors' code, its dense variant"),
    },
    "perada": {
        "adapter": (("",), "ours: all layers (card)"),
        "lam": (1.0, "authors' example"),
        "distil_steps": (500, "authors' example"),
        "distil_batch": (2048, "authors' example"),
        "distil_lr": (0.001, "authors' example"),
    },
    "perfedavg": {
        "variant": ("hf", "Fallah et al. 2020, HF"),
        "alpha": (0.01, "public code (FL-bench)"),
        "delta": (0.001, "public code (FL-bench)"),
        "personal_steps": (1, "Fallah et al. 2020: one step"),
    },
    "perfedavg_async": {
        "late": ("as_is", "released code of the SPFL paper"),
        **_LATE,
        "beta": (0.001, "released code of the SPFL paper"),
    },
    "pfedfda": {
        "beta": (None, "McLaughlin and Su 2024: by cross-validation"),
        "ridge": (1.0, "authors' code (card)"),
    },
    "pfedgraph": {"alpha": (0.8, "authors' code"), "lam": (0.01, "authors' code")},
    "pfedhn": {
        "lr": (0.01, "authors' code"),
        "embedding_lr": (None, "authors' code: as the network's"),
        "momentum": (0.9, "authors' code"),
        "weight_decay": (0.001, "authors' code"),
        "clip": (50.0, "authors' code"),
        "embedding": (None, "authors' code: 1 + N / 4"),
        "hidden": (100, "authors' code"),
        "layers": (3, "authors' code"),
    },
    "pfedla": {
        "lr": (0.005, "public code (card)"),
        "embedding": (100, "public code (card)"),
        "hidden": (100, "public code (card)"),
    },
    "pfedme": {
        "lam": (15.0, "Dinh et al. 2020, MNIST"),
        "K": (5, "Dinh et al. 2020"),
        "eta": (0.005, "Dinh et al. 2020"),
        "eta_p": (None, CELL),
        "beta": (1.0, "Dinh et al. 2020: 1 to 2"),
    },
    "pfedsim": {"warmup": (10, "ours (card)")},
    "pflda": {"lam": (1.0, "public code (PFLlib)")},
    "pgfed": _PGFED,
    "pgfed_ce": _PGFED | {"coefficients": ("server", "PGFed poster: PGFed-CE (reconstruction)")},
    "pgfedmo": _PGFED | {"beta": (0.5, "authors' code")},
    "plga": {"late": ("leap", "SPFL paper, LGA"), **_LATE, "interpolate": (True, "SPFL paper, PLGA")},
    "scaffold": {"server_lr": (1.0, "Karimireddy et al. 2020: eta_g = 1")},
    "scd": {
        "tau": (0.4, "SCD, Table 6: the row of Table 1"),
        "lambda_g": (0.05, "SCD, Table 7: the row of Table 1"),
        "lambda_p": (0.01, "SCD, Table 8: the row of Table 1"),
        "personal_epochs": (None, CELL),
        "personal_lr": (None, CELL),
        "personal_start": ("kept", "SCD, Algorithm 1"),
        "preset": ("generalised_kl", "ours (card): the paper does not say how spectra become distributions"),
        "normalise": ("gen_kl", "ours (card)"),
        "order": ("truncate_first", "SCD: the spectrum is truncated (card)"),
        "layout": ("flat", "SCD (card): one vector of all weights"),
        "transform": ("dft", "SCD (card)"),
        "fft_norm": ("ortho", "ours (card)"),
        "band": ("paper", "SCD (card): the first tau"),
        "direction": ("student_teacher", "SCD, Algorithm 1 (card)"),
        "params": ("trainable", "ours (card)"),
        "reduction": ("sum", "SCD (card)"),
        "scale": ("one", "SCD: lambda as it is"),
        "eps": (1e-12, "ours: no division by zero"),
        "detach_student": (False, "SCD; the released code has true"),
        "skip_first_batch": (False, "SCD; the released code has true"),
        "extra_l2": (0.0, "SCD; the released code has one"),
    },
    "spfl": _SPFL,
    "spfl_w": _SPFL | {"mix": ("weights", "SPFL paper, SPFL-w")},
    "superfed": {
        "mixing": ("model", "Hahn et al. 2022: MM"),
        "start": (10, "ours (card)"),
        "nu": (2.0, "authors' example"),
        "mu": (0.01, "authors' example"),
        "lam": (0.5, "ours (card)"),
    },
}
_LIARS = {"share": (0.2, "ours (card)")}
RULES: dict[str, dict[str, tuple[Any, str]]] = {
    "bulyan": _LIARS,
    "centered_clip": {"tau": (10.0, "ours (card)"), "iterations": (1, "Karimireddy et al. 2021 [1]")},
    "fedasync": _FEDASYNC,
    "fedbuff": _FEDBUFF,
    "fedopt": _FEDOPT,
    "flash": _FLASH,
    "geometric_median": {"iterations": (3, "ours (card)"), "nu": (1e-6, "Pillutla et al. 2022 [1e-6]")},
    "krum": _LIARS,
    "median": {},
    "momentum": _MOMENTUM,
    "multi_krum": _LIARS,
    "norm_clip": {"norm": (1.0, "ours (card)")},
    "trimmed_mean": _LIARS,
}


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_defaults_of_a_method(name: str) -> None:
    assert name in DEFAULTS, "a new method: say where its defaults come from"
    assert _defaults(METHODS.get(name).Hyper) == {key: value for key, (value, _) in DEFAULTS[name].items()}


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_card_names_what_the_defaults_leave_to_it(name: str) -> None:
    cards = ROOT / "docs" / "methods"
    (file,) = re.findall(rf"\[`{name}`\]\(([a-z0-9_]+\.md)\)", (cards / "README.md").read_text(encoding="utf-8"))
    card = (cards / file).read_text(encoding="utf-8")
    left = [key for key, (_, source) in DEFAULTS[name].items() if source.endswith("(card)")]
    assert [key for key in left if not re.search(rf"\b{key}\b", card)] == []


@pytest.mark.parametrize("name", SERVER_RULES.names())
def test_defaults_of_a_server_rule(name: str) -> None:
    assert _defaults(SERVER_RULES.get(name).Hyper) == {key: value for key, (value, _) in RULES[name].items()}


def _defaults(hyper: Any) -> dict[str, Any]:
    return {key: field.get_default(call_default_factory=True) for key, field in hyper.model_fields.items()}
