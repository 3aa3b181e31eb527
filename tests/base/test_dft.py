"""The DFT in two steps is the DFT, of whatever length and however many vectors are transformed at a time."""

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


def vectors(d: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(d).standard_normal((*shape, d)))


@given(
    d=COMPOSITE, shape=st.sampled_from([(), (1,), (2, 3)]), at_once=st.integers(1, 1000), norms=st.sampled_from(NORMS)
)
def test_both_directions_are_torch_s(d: int, shape: tuple[int, ...], at_once: int, norms: tuple[Any, Any]) -> None:
    x = vectors(d, *shape)
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(dft, "_AT_ONCE", at_once)
        z, right = dft._rfft(x, norms[0]), torch.fft.rfft(x, norm=norms[0])
        torch.testing.assert_close(z, right, rtol=0, atol=1e-9)
        torch.testing.assert_close(dft._irfft(z, d, norms[1]), torch.fft.irfft(z, d, norm=norms[1]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("d", [4 * 3, 5 * 3])
def test_first_and_second_derivatives(d: int, norms: tuple[Any, Any]) -> None:
    x, z = vectors(d, 2).requires_grad_(), torch.fft.rfft(vectors(d, 2)).requires_grad_()
    for function, at in (
        (lambda x: dft._Rfft.apply(x, norms[0]), x),
        (lambda z: dft._Irfft.apply(z, d, norms[1]), z),
    ):
        assert torch.autograd.gradcheck(function, (at,))
        assert torch.autograd.gradgradcheck(function, (at,))


@pytest.mark.parametrize("d", [2 * 131, 5 * 131])
def test_lanes_are_transformed_together_and_one_by_one_alike(d: int) -> None:
    x = vectors(d, 3)
    z = dft._rfft(x, "ortho")
    for dim in (0, 1):
        assert torch.equal(vmap(lambda one: dft._Rfft.apply(one, "ortho"), in_dims=dim)(x.movedim(0, dim)), z)
        back = vmap(lambda one: dft._Irfft.apply(one, d, "ortho"), in_dims=dim)(z.movedim(0, dim))
        assert torch.equal(back, dft._irfft(z, d, "ortho"))


@pytest.mark.parametrize(("d", "takes"), [(11_173_962, True), (2 * 127, False), (131, False), (131 * 131, True)])
def test_only_lengths_that_gain_from_it_take_two_steps(d: int, takes: bool) -> None:
    """The first is ResNet-18's; a prime has no factors to be split into."""
    assert dft.takes_two_steps(d) == takes
    assert dft._factors(11_173_962) == (2382, 4691)


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
    assert lengths.seen == {d // 131}
    for one, right in zip(there, here, strict=True):
        torch.testing.assert_close(one, right, rtol=0, atol=1e-9)


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
@pytest.mark.parametrize("normalise", ["none", "gen_kl"])
@pytest.mark.parametrize("d", [6 * 131, 5 * 131])
def test_scd_s_divergence_in_one_pass_is_its_formula_with_its_gradient(
    d: int, normalise: Any, direction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU. Teachers differ between lanes, or all have the same one."""
    x, o = vectors(d, 3), SpectralOptions(normalise=normalise, direction=direction, eps=1e-3)
    teachers = vmap(lambda one: magnitudes(one, o))(vectors(d + 1, 3)[:, :d])

    def term(one: Tensor, teacher: Tensor) -> Tensor:
        whole: Any = SimpleNamespace(weights=one)
        return 3 * divergence(whole, teacher, 0.9, o)

    def found() -> Any:
        both = vmap(term)(x, teachers), vmap(grad(term))(x, teachers)
        return *both, vmap(grad(term), in_dims=(1, None))(x.T, teachers[0]), grad(term)(x[0], teachers[0])

    here = found()
    monkeypatch.setattr(tensors, "on_gpu", lambda tensor: True)
    passes, plain = [], dft._slopes
    monkeypatch.setattr(dft, "_slopes", lambda *args: passes.append(1) or plain(*args))
    torch.testing.assert_close(found(), here, rtol=1e-9, atol=1e-9)
    assert passes


@pytest.mark.long
def test_float32_is_as_exact_as_the_library() -> None:
    x = vectors(397 * 4691)
    right = torch.fft.rfft(x)
    ours, library = dft._rfft(x.float(), "backward"), torch.fft.rfft(x.float())
    assert (ours - right).abs().max() < 2 * (library - right).abs().max()
