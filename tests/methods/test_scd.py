"""SCD's spectral mathematics against the paper's formulas written with the full transform."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bench.config.grid import load_grid
from bench.config.identity import cell_id
from bench.method import Params
from bench.params import Spec
from methods.scd import PRESETS, Hyper
from methods.spectrum import SpectralOptions, divergence, spectrum
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, descend, gradient, initial, local_batches, near


def vector(values: Any) -> Params:
    """A model value with one parameter tensor."""
    weights = torch.as_tensor(values, dtype=torch.float64)
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(len(weights), device="meta"))
    return Params(weights, torch.zeros(0, dtype=torch.float64), Spec.of(f"vector{len(weights)}", module))


def options(**given: Any) -> SpectralOptions:
    return SpectralOptions(**{"eps": 0.0, "normalise": "simplex", "fft_norm": "backward", **given})


def paper(student: Tensor, teacher: Tensor, tau: float, normalise: str) -> Tensor:
    """D over the first ceil(tau d) entries of the full DFT."""
    k = int(np.ceil(tau * student.numel()))
    p, q = (torch.fft.fft(w.flatten()).abs()[:k] for w in (student, teacher))
    if normalise == "simplex":
        p, q = p / p.sum(), q / q.sum()
    if normalise == "mean":
        p, q = p / p.mean(), q / q.mean()
    return (p * (p / q).log()).sum() + ((q - p).sum() if normalise == "gen_kl" else 0.0)


vectors = st.integers(5, 40).flatmap(
    lambda d: st.tuples(*[st.integers(0, 2**32 - 1).map(lambda s: np.random.default_rng(s).normal(size=d))] * 2)
)


@given(pair=vectors, tau=st.floats(0.01, 1.0), normalise=st.sampled_from(["simplex", "mean", "none", "gen_kl"]))
def test_equals_the_full_transform(pair: tuple[np.ndarray, np.ndarray], tau: float, normalise: str) -> None:
    """Value and gradient, for odd and even d and every tau."""
    student, teacher = pair
    o = options(normalise=normalise)
    w, leaf = (torch.tensor(student, requires_grad=True) for _ in range(2))
    value = divergence(vector(student).with_weights(w), spectrum(vector(teacher), tau, o), tau, o)
    expected = paper(leaf, torch.tensor(teacher), tau, normalise)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    (slope,), (expected_slope,) = torch.autograd.grad(value, w), torch.autograd.grad(expected, leaf)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-7, atol=1e-9)


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


@pytest.mark.parametrize("normalise", ["none", "gen_kl"])
def test_zero_weights_have_a_finite_gradient(normalise: str) -> None:
    o = SpectralOptions(normalise=normalise)
    leaf = torch.zeros(9, dtype=torch.float64, requires_grad=True)
    value = divergence(vector(np.zeros(9)).with_weights(leaf), spectrum(vector(1 + np.arange(9)), 0.4, o), 0.4, o)
    assert torch.isfinite(torch.autograd.grad(value, leaf)[0]).all()


@pytest.mark.parametrize(
    "given",
    [
        {"layout": "per_layer"}, {"layout": "sum_of_layers"},
        {"transform": "rfft"}, {"transform": "fft2_layer"}, {"band": "rfft_fraction"},
        {"direction": "teacher_student"}, {"params": "weights_only", "layout": "per_layer"}, {"reduction": "mean"},
        {"scale": "d"}, {"order": "normalise_first"},
    ],
)  # fmt: skip
def test_every_option_changes_the_value(given: dict[str, Any]) -> None:
    student, teacher = two_layers()

    def value(o: SpectralOptions) -> float:
        return float(divergence(student, spectrum(teacher, 0.7, o), 0.7, o))

    assert value(options(**given)) != pytest.approx(value(options()), rel=1e-6)


def two_layers() -> tuple[Params, Params]:
    """A student and a teacher of two layers with biases."""
    spec = Spec.of("layers", nn.Sequential(nn.Linear(5, 4, device="meta"), nn.Linear(4, 3, device="meta")))
    rng = np.random.default_rng(1)
    empty = torch.zeros(0, dtype=torch.float64)
    a, b = (Params(torch.tensor(rng.normal(size=spec.d)), empty, spec) for _ in range(2))
    return a, b


@pytest.mark.parametrize("normalise", ["simplex", "mean", "none", "gen_kl"])
def test_a_sum_of_layers_is_the_sum_of_their_divergences(normalise: str) -> None:
    """Each tensor with a spectrum, a band and a normalisation of its own."""
    student, teacher = two_layers()
    o = options(layout="sum_of_layers", normalise=normalise)
    found = divergence(student, spectrum(teacher, 0.4, o), 0.4, o)
    pairs = zip(student.tensors().values(), teacher.tensors().values(), strict=True)
    expected = sum(float(paper(a, b, 0.4, normalise)) for a, b in pairs)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_presets_fill_in_what_is_not_given() -> None:
    assert Hyper(preset="released_code").detach_student
    assert Hyper(preset="released_code", lambda_g=0.7).lambda_g == 0.7
    assert Hyper(preset="as_printed").normalise == "none"
    assert Hyper(preset="simplex").normalise == "simplex"
    assert (Hyper().normalise, Hyper().fft_norm) == ("gen_kl", "ortho")
    assert set(PRESETS) == set(get_args(Hyper.model_fields["preset"].annotation))
    resolved = Hyper(preset="released_code").model_dump()
    assert Hyper(**resolved).model_dump() == resolved


def test_the_clock_bills_a_gradient_without_data_as_no_samples() -> None:
    """The balanced term takes a gradient of its own, of the weights alone."""
    seconds = []
    for scale in ("one", "grad_balance"):
        federation = toy("scd", hp={"scale": scale})
        run(federation, 2)
        seconds.append(federation.now)
    assert seconds[0] == seconds[1]


def test_the_released_code_pulls_to_the_received_model() -> None:
    """One personal step by hand in round 2, where received and updated generic models differ: beta (w - w_G) / |.|."""
    hp = {"preset": "released_code", "extra_l2": 0.3, "lambda_g": 0.0, "skip_first_batch": False}
    settings: dict[str, Any] = {"sizes": [4, 4], **PLAIN}
    federation = toy("scd", hp=hp, **settings)
    run(federation, 1)
    received = generic(federation).numpy()
    kept = {i: w.numpy() for i, w in personal(federation).items()}
    run(federation, 1)
    for i, found in personal(federation).items():
        away = kept[i] - received
        ((x, y),) = local_batches([4, 4], 1, i)
        near(found, kept[i] - LR * (gradient(kept[i], x, y) + 0.3 * away / np.linalg.norm(away)))


def test_restart_begins_with_the_updated_generic_model() -> None:
    """Without the terms it is the generic model after a second training on the same batches."""
    hp = {"preset": "restart", "lambda_g": 0.0, "lambda_p": 0.0}
    federation = toy("scd", sizes=[9, 5], hp=hp, **PLAIN)
    start = initial(federation)
    run(federation, 1)
    for i, found in personal(federation).items():
        twice = descend(descend(start, local_batches([9, 5], 0, i)), local_batches([9, 5], 0, i))
        near(found, twice)


def test_a_preset_and_its_options_spelled_out_are_one_cell(tmp_path: Path) -> None:
    """Whichever way a reading is written, a cell that is done is found again."""
    for name, spelled_out in PRESETS.items():
        ids = []
        for hp in ({"preset": name}, spelled_out):
            grid = tmp_path / "grid.yaml"
            grid.write_text(json.dumps({"methods": [{"name": "scd", **hp}], "alphas": [1.0]}))
            (cell,) = load_grid(str(grid), []).cells
            ids.append(cell_id(cell, "checksum"))
        assert ids[0] == ids[1], name
