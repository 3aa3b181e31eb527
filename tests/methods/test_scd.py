"""SCD's spectral mathematics against the paper's formulas written with the full transform in numpy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bench.method import Params
from bench.params import Spec
from methods.scd import Hyper
from methods.spectrum import SpectralOptions, divergence, spectrum


def vector(values: Any) -> Params:
    """A model value with one parameter tensor."""
    weights = torch.as_tensor(values, dtype=torch.float64)
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(len(weights), device="meta"))
    return Params(weights, torch.zeros(0, dtype=torch.float64), Spec.of(f"vector{len(weights)}", module))


def options(**given: Any) -> SpectralOptions:
    return SpectralOptions(**{"eps": 0.0, **given})


def paper(student: np.ndarray, teacher: np.ndarray, tau: float, normalise: str) -> float:
    """D over the first ceil(tau d) entries of the full DFT."""
    k = int(np.ceil(tau * len(student)))
    p, q = np.abs(np.fft.fft(student))[:k], np.abs(np.fft.fft(teacher))[:k]
    if normalise == "simplex":
        p, q = p / p.sum(), q / q.sum()
    if normalise == "mean":
        p, q = p / p.mean(), q / q.mean()
    extra = (q - p).sum() if normalise == "gen_kl" else 0.0
    return float((p * np.log(p / q)).sum() + extra)


vectors = st.integers(5, 40).flatmap(
    lambda d: st.tuples(*[st.integers(0, 2**32 - 1).map(lambda s: np.random.default_rng(s).normal(size=d))] * 2)
)


@given(pair=vectors, tau=st.floats(0.01, 1.0), normalise=st.sampled_from(["simplex", "mean", "none", "gen_kl"]))
def test_equals_the_full_transform(pair: tuple[np.ndarray, np.ndarray], tau: float, normalise: str) -> None:
    """Value and gradient, for odd and even d and every tau."""
    student, teacher = pair
    o = options(normalise=normalise)
    q = spectrum(vector(teacher), tau, o)
    w = torch.tensor(student, requires_grad=True)
    value = divergence(vector(student).with_weights(w), q, tau, o)
    assert float(value.detach()) == pytest.approx(paper(student, teacher, tau, normalise), rel=1e-9, abs=1e-12)

    k = int(np.ceil(tau * len(student)))
    full = torch.fft.fft(torch.tensor(student, requires_grad=True))
    leaf = torch.tensor(student, requires_grad=True)
    full = torch.fft.fft(leaf).abs()[:k]
    other = torch.tensor(np.abs(np.fft.fft(teacher))[:k])
    if normalise == "simplex":
        full, other = full / full.sum(), other / other.sum()
    if normalise == "mean":
        full, other = full / full.mean(), other / other.mean()
    extra = (other - full).sum() if normalise == "gen_kl" else 0.0
    expected = torch.autograd.grad((full * (full / other).log()).sum() + extra, leaf)[0]
    torch.testing.assert_close(torch.autograd.grad(value, w)[0], expected, rtol=1e-7, atol=1e-9)


@given(pair=vectors, tau=st.floats(0.01, 1.0))
def test_simplex_is_a_divergence(pair: tuple[np.ndarray, np.ndarray], tau: float) -> None:
    """Zero at agreement, never negative, blind to scale, sign and circular shift of the weights."""
    student, teacher = pair
    o = options()
    q = spectrum(vector(teacher), tau, o)
    value = float(divergence(vector(student), q, tau, o))
    assert value >= -1e-12
    assert float(divergence(vector(teacher), q, tau, o)) == pytest.approx(0.0, abs=1e-12)
    for same in (3.0 * student, -student, np.roll(student, 2)):
        assert float(divergence(vector(same), q, tau, o)) == pytest.approx(value, rel=1e-6, abs=1e-9)


def test_the_printed_form_is_none() -> None:
    """Unnormalised D: gradient norm d at agreement (backward norm), sqrt(d) (ortho); its value can be negative."""
    w = np.random.default_rng(0).normal(size=400)
    for norm, expected in (("backward", 400.0), ("ortho", 20.0)):
        o = options(normalise="none", fft_norm=norm)
        leaf = torch.tensor(w, requires_grad=True)
        value = divergence(vector(w).with_weights(leaf), spectrum(vector(w), 1.0, o), 1.0, o)
        assert float(torch.autograd.grad(value, leaf)[0].norm()) == pytest.approx(expected, rel=1e-9)
    o = options(normalise="none")
    assert float(divergence(vector(w), spectrum(vector(1.5 * w), 1.0, o), 1.0, o)) < 0


def test_zero_weights_have_a_finite_gradient() -> None:
    o = SpectralOptions()
    q = spectrum(vector(np.ones(9) + np.arange(9)), 0.4, o)
    for normalise in ("mean", "none", "gen_kl"):
        o = SpectralOptions(normalise=normalise)
        leaf = torch.zeros(9, dtype=torch.float64, requires_grad=True)
        value = divergence(vector(np.zeros(9)).with_weights(leaf), q, 0.4, o)
        if normalise != "mean":
            assert torch.isfinite(torch.autograd.grad(value, leaf)[0]).all()


@pytest.mark.parametrize(
    "given",
    [
        {"layout": "per_layer"}, {"transform": "rfft"}, {"transform": "fft2_layer"}, {"band": "rfft_fraction"},
        {"direction": "teacher_student"}, {"params": "weights_only", "layout": "per_layer"}, {"reduction": "mean"},
        {"scale": "d"}, {"order": "normalise_first"},
    ],
)  # fmt: skip
def test_every_option_changes_the_value(given: dict[str, Any]) -> None:
    """On a model with two layers and biases."""
    module = nn.Sequential(nn.Linear(5, 4, device="meta"), nn.Linear(4, 3, device="meta"))
    spec = Spec.of("options", module)
    rng = np.random.default_rng(1)
    a, b = (Params(torch.tensor(rng.normal(size=spec.d)), torch.zeros(0, dtype=torch.float64), spec) for _ in range(2))

    def value(o: SpectralOptions) -> float:
        return float(divergence(a, spectrum(b, 0.7, o), 0.7, o))

    assert value(options(**given)) != pytest.approx(value(options()), rel=1e-6)


def test_presets_fill_in_what_is_not_given() -> None:
    assert Hyper(preset="released_code").detach_student
    assert Hyper(preset="released_code", lambda_g=0.7).lambda_g == 0.7
    assert Hyper(preset="paper_literal").normalise == "none"
    resolved = Hyper(preset="released_code").model_dump()
    assert Hyper(**resolved).model_dump() == resolved
    assert SimpleNamespace(**resolved).tau == 0.4
