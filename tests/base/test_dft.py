"""The DFT in two steps is the DFT, of whatever length and however many vectors are transformed at a time."""

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from bench import dft, tensors
from methods.frequencies import magnitudes
from methods.spectrum import SpectralOptions, divergence

NORMS = [("backward", "forward"), ("ortho", "ortho")]
COMPOSITE = st.tuples(st.integers(2, 40), st.sampled_from([2, 3, 4, 131, 137, 151])).map(lambda pair: pair[0] * pair[1])
FACTORS = st.tuples(st.integers(2, 40), st.integers(2, 40))


def vectors(d: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(d).standard_normal((*shape, d)))


@contextlib.contextmanager
def split(a: int, b: int, at_once: int = 2**25) -> Iterator[None]:
    """Let vectors be transformed as so many rows and columns, so many numbers at a time; one column is no split."""
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(dft, "_factors", lambda d: (a, b))
        patch.setattr(dft, "_AT_ONCE", at_once)
        yield


@given(
    factors=FACTORS,
    shape=st.sampled_from([(), (1,), (2, 3)]),
    at_once=st.integers(1, 1000),
    norms=st.sampled_from(NORMS),
)
def test_both_directions_are_torch_s(
    factors: tuple[int, int], shape: tuple[int, ...], at_once: int, norms: tuple[Any, Any]
) -> None:
    d = math.prod(factors)
    x = vectors(d, *shape)
    with split(*factors, at_once):
        z, right = dft._transform(x, d, norms[0], False), torch.fft.rfft(x, norm=norms[0])
        torch.testing.assert_close(z, right, rtol=0, atol=1e-9)
        back = dft._transform(z, d, norms[1], True)
        torch.testing.assert_close(back, torch.fft.irfft(z, d, norm=norms[1]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("factors", [(4, 3), (5, 3), (3, 4)])
def test_first_and_second_derivatives(factors: tuple[int, int], norms: tuple[Any, Any]) -> None:
    d = math.prod(factors)
    x, z = vectors(d, 2).requires_grad_(), torch.fft.rfft(vectors(d, 2)).requires_grad_()
    with split(*factors):
        for norm, at, inverse in zip(norms, (x, z), (False, True), strict=True):

            def function(numbers: Tensor, norm: Any = norm, inverse: bool = inverse) -> Tensor:
                transformed: Tensor = dft._Transform.apply(numbers, d, norm, inverse)
                return transformed

            assert torch.autograd.gradcheck(function, (at,))
            assert torch.autograd.gradgradcheck(function, (at,))


@pytest.mark.parametrize("d", [2 * 131, 5 * 131])
def test_lanes_are_transformed_together_and_one_by_one_alike(d: int) -> None:
    x = vectors(d, 3)
    z = dft._transform(x, d, "ortho", False)
    for dim in (0, 1):
        found = vmap(lambda one: dft._Transform.apply(one, d, "ortho", False), in_dims=dim)(x.movedim(0, dim))
        assert torch.equal(found, z)
        back = vmap(lambda one: dft._Transform.apply(one, d, "ortho", True), in_dims=dim)(z.movedim(0, dim))
        assert torch.equal(back, dft._transform(z, d, "ortho", True))


@pytest.mark.parametrize(("d", "takes"), [(11_173_962, True), (2 * 127, False), (131, False), (131 * 131, True)])
def test_only_lengths_that_gain_from_it_take_two_steps(d: int, takes: bool) -> None:
    """The first is ResNet-18's; a prime has no factors to be split into."""
    assert dft.takes_two_steps(d) == takes
    assert (dft._factors(d)[1] > 1) == takes


@given(COMPOSITE)
def test_columns_make_pairs_if_they_can(d: int) -> None:
    """And neither factor is larger than need be; 11,173,962 has no two factors nearer to each other."""
    a, b = dft._factors(d)
    assert a * b == d
    assert b % 2 == 0 or d % 2 == 1 or b == 1
    assert dft._factors(11_173_962) == (4691, 2382)


class Lengths:
    """torch's transform, which notes the lengths that it is asked for."""

    def __init__(self) -> None:
        self.plain, self.seen = torch.fft.rfft, set[int]()

    def __call__(self, x: Tensor, dim: int = -1, norm: str | None = None) -> Tensor:
        self.seen.add(x.shape[dim])
        return self.plain(x, dim=dim, norm=norm)


@pytest.mark.parametrize("norm", ["backward", "ortho"])
@pytest.mark.parametrize("d", [2 * 131, 5 * 131])
def test_scd_s_magnitudes_and_their_gradients_are_the_same_there(
    d: int, norm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And there only: on a CPU the whole length is transformed, as before."""
    x, o = vectors(d, 3), SpectralOptions(fft_norm=norm)

    def weighed(one: Tensor) -> Tensor:
        return (magnitudes(one, o) * torch.arange(d // 2 + 1)).sum()

    monkeypatch.setattr(torch.fft, "rfft", lengths := Lengths())
    here = vmap(lambda one: magnitudes(one, o))(x), vmap(grad(weighed))(x)
    assert lengths.seen == {d}
    lengths.seen.clear()
    monkeypatch.setattr(tensors, "on_gpu", lambda tensor: True)
    there = vmap(lambda one: magnitudes(one, o))(x), vmap(grad(weighed))(x)
    assert lengths.seen == {131}
    for one, right in zip(there, here, strict=True):
        torch.testing.assert_close(one, right, rtol=0, atol=1e-9)


@given(
    factors=st.one_of(FACTORS, COMPOSITE.map(lambda d: (d, 1)), st.sampled_from([(131, 6), (131, 5), (211, 1)])),
    fft_norm=st.sampled_from(["backward", "ortho"]),
    normalise=st.sampled_from(["none", "gen_kl"]),
    direction=st.sampled_from(["student_teacher", "teacher_student"]),
    transform=st.sampled_from(["dft", "rfft"]),
    tau=st.sampled_from([0.3, 0.9, 1.0]),
    at_once=st.sampled_from([1, 2000]),
)
def test_scd_s_divergence_in_one_pass_is_its_formula_with_its_gradient(
    factors: tuple[int, int], tau: float, at_once: int, **options: Any
) -> None:
    """On a GPU, for whatever factors of a length. Teachers differ between lanes, or all have the same one."""
    d = math.prod(factors)
    x, o = vectors(d, 3), SpectralOptions(eps=1e-3, **options)
    teachers = vmap(lambda one: magnitudes(one, o))(vectors(d + 1, 3)[:, :d])

    def term(one: Tensor, teacher: Tensor) -> Tensor:
        whole: Any = SimpleNamespace(weights=one)
        return 3 * divergence(whole, teacher, tau, o)

    def found() -> Any:
        both = vmap(term)(x, teachers), vmap(grad(term))(x, teachers)
        return *both, vmap(grad(term), in_dims=(1, None))(x.T, teachers[0]), grad(term)(x[0], teachers[0])

    here = found()
    with split(*factors, at_once), pytest.MonkeyPatch().context() as patch:
        patch.setattr(tensors, "on_gpu", lambda tensor: True)
        passes, plain = [], dft._gradient
        patch.setattr(dft, "_gradient", lambda *args: passes.append(1) or plain(*args))
        torch.testing.assert_close(found(), here, rtol=1e-9, atol=1e-9)
        assert passes


@pytest.mark.parametrize("a", [5, 6])
def test_columns_that_are_real_have_a_real_mean(a: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And, for an even length, the highest frequency, in what the library inverts; on a GPU it expects that."""
    seen, plain = [], torch.fft.irfft
    monkeypatch.setattr(torch.fft, "irfft", lambda z, **rest: seen.append(z) or plain(z, **rest))
    slopes = torch.view_as_complex(vectors(2, 2, a // 2 + 1, 4))
    with split(a, 4):
        dft._gradient(slopes, vectors(2), 4 * a, "ortho")
    real = ~seen[0].imag.any(2)
    assert real.tolist() == [[k1 in (0, a / 2) for k1 in range(a // 2 + 1)]] * 2


@pytest.mark.long
def test_float32_is_as_exact_as_the_library() -> None:
    x = vectors(397 * 4691)
    right, d = torch.fft.rfft(x), x.shape[-1]
    ours, library = dft._transform(x.float(), d, "backward", False), torch.fft.rfft(x.float())
    assert (ours - right).abs().max() < 2 * (library - right).abs().max()
    ours, library = dft._transform(right.cfloat(), d, "forward", True), torch.fft.irfft(right.cfloat(), d)
    assert (ours / d - x).abs().max() < 2 * (library - x).abs().max()
