"""Identities between methods, bit for bit in the precision that users run."""

from typing import Any

import pytest
import torch

from bench.federation.federation import Federation
from tests.engine.problems import generic, personal, run, toy

COMMON: dict[str, Any] = {"dtype": "float32", "model": "mlp", "model_options": {"hidden": 9}}
CORNERS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "batch statistics": {"model": "test_norm", "model_options": {}},
    "batch statistics, local": {"model": "test_norm", "model_options": {}, "batchnorm": "local"},
    "one by one": {"executor": "sequential"},
}

PERSONAL = {"mlp": ("body",), "test_norm": ("inner", "norm")}  # all layers but the head


QUICK = "batch statistics, local"
"""`make test-all` tries the others, too."""


@pytest.fixture(params=[pytest.param(name, marks=[] if name == QUICK else [pytest.mark.long]) for name in CORNERS])
def corner(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CORNERS[request.param]


def after(method: str, corner: dict[str, Any], **hp: Any) -> Federation:
    federation = toy(method, hp=hp, **{**COMMON, **corner})
    run(federation, 3)
    return federation


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()


def same_models(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(same(a[i], b[i]) for i in a)


@pytest.mark.long
def test_scd_without_its_terms_is_fedavg_and_local(corner: dict[str, Any]) -> None:
    scd = after("scd", corner, lambda_g=0.0, lambda_p=0.0)
    assert same(generic(scd), generic(after("fedavg", corner)))
    assert same_models(personal(scd), personal(after("local", corner)))


@pytest.mark.long
def test_each_term_of_scd_moves_its_own_model(corner: dict[str, Any]) -> None:
    """The released code's term moves nothing; ours must."""
    plain = after("scd", corner, lambda_g=0.0, lambda_p=0.0)
    for normalise in ("simplex", "mean", "gen_kl"):
        no_gm = after("scd", corner, lambda_g=0.0, lambda_p=0.1, normalise=normalise)
        assert same(generic(no_gm), generic(plain)), normalise
        assert not same_models(personal(no_gm), personal(plain)), normalise
        no_pm = after("scd", corner, lambda_g=0.1, lambda_p=0.0, normalise=normalise)
        assert not same(generic(no_pm), generic(plain)), normalise
        assert same_models(personal(no_pm), personal(plain)), normalise


def test_scd_with_an_empty_band_is_scd_without_the_generic_term(corner: dict[str, Any]) -> None:
    a, b = after("scd", corner, tau=0.0, lambda_g=0.7), after("scd", corner, lambda_g=0.0)
    assert same(generic(a), generic(b))
    assert same_models(personal(a), personal(b))


def test_ditto(corner: dict[str, Any]) -> None:
    """lambda 0 is Local; the generic model is FedAvg's for every lambda."""
    fedavg = generic(after("fedavg", corner))
    local = personal(after("local", corner))
    for lam in (0.0, 1.0):
        ditto = after("ditto", corner, lam=lam)
        assert same(generic(ditto), fedavg)
        assert same_models(personal(ditto), local) == (lam == 0.0)


@pytest.mark.parametrize(("method", "setting"), [("fedper", "personal"), ("lgfedavg", "shared")])
def test_all_layers_or_none_of_them_personal_is_local_or_fedavg(
    method: str, setting: str, corner: dict[str, Any]
) -> None:
    """And the head alone is neither."""
    fedavg, local = after("fedavg", corner), after("local", corner)
    for layers, share in (((), 0), (("head",), 0.5), (("",), 1)):
        models = personal(after(method, corner, **{setting: layers}))
        alone = share if setting == "personal" else 1 - share
        assert same_models(models, dict.fromkeys(models, generic(fedavg))) == (alone == 0)
        assert same_models(models, personal(local)) == (alone == 1)


def test_the_head_alone_shared_is_fedper_with_a_personal_body(corner: dict[str, Any]) -> None:
    lgfedavg, fedper = after("lgfedavg", corner), after("fedper", corner, personal=PERSONAL[corner.get("model", "mlp")])
    assert same_models(personal(lgfedavg), personal(fedper))


def test_a_client_computes_the_same_bytes_whoever_shares_its_cohort() -> None:
    """Clients 0 and 1 alone, and in the company of 18 others."""
    company = personal(after("local", {}))
    few = toy("local", sizes=[13, 7], clients=2, **COMMON)
    run(few, 3)
    for i, w in personal(few).items():
        assert same(w, company[i])
