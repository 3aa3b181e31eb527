"""What runs on a CPU runs on a GPU, too; skipped if there is no GPU.

`test_second_device.py` needs no GPU, but it tests neither the rounding of a GPU nor its libraries.
"""

import functools
import gc
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn import functional

from bench import dft
from bench.engine.backends import backends
from bench.engine.backends.cuda_graph import cuda_graph
from bench.engine.device import make_deterministic
from bench.engine.lanes import norm_relu
from bench.engine.lanes.common import Geometry
from bench.engine.lanes.convolution import KERNELS, convolve
from bench.engine.lanes.sgd import plain_sgd
from bench.federation.federation import Federation
from methods.spectrum import SpectralOptions, divergence
from tests.engine.problems import METHOD_NAMES, assert_same, everything, run, toy
from tests.speed.problems import two_rounds

SIZES = [13, 7, 1, 0, 10, 6]  # in batches of four; the short batches have three, two and two samples

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

GPU = "cuda"
SMALL: dict[str, dict[str, Any]] = {"cnn": {"hidden": 8}, "resnet18": {}, "mlp": {}}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A cell on a GPU changes settings of the whole process; put them back."""
    places: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
    before, deterministic = [place.fp32_precision for place in places], torch.are_deterministic_algorithms_enabled()
    yield
    for place, value in zip(places, before, strict=True):
        place.fp32_precision = value
    torch.use_deterministic_algorithms(deterministic)


def _images(
    model: str, *, method: str = "ditto", device: str = GPU, executor: Any = "cohort", **settings: Any
) -> tuple[Federation, Any]:
    """A small cell of images after two rounds: its state and scores."""
    settings |= {"model": model, "model_options": SMALL[model]}
    return two_rounds(method, settings=settings, device=device, executor=executor)


@pytest.mark.parametrize(("model", "tolerance"), [("test_linear", 1e-9), ("test_norm", 1e-7)])
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_trains_there_as_here(method: str, executor: str, model: str, tolerance: float) -> None:
    """In float64; cohorts do not fall back to one client at a time. With BatchNorm, which amplifies differences of
    rounding, they pad short batches there and not here."""
    here, there = (toy(method, executor=executor, model=model, sizes=SIZES, device=device) for device in ("cpu", GPU))
    scores = [[row["value"] for row in run(federation, 2).metrics] for federation in (here, there)]
    assert_same(everything(there), everything(here), tolerance)
    assert scores[1] == pytest.approx(scores[0])
    assert not there.engine.fallbacks


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("method", ["scd", "pgfed", "hypcluster"])
def test_models_that_rest_in_pinned_memory_train_the_same(method: str, executor: str) -> None:
    here, there = toy(method, executor=executor), toy(method, executor=executor, device=GPU, offload=True)
    for federation in (here, there):
        run(federation, 2)
    assert {tensor.device.type for tensor in everything(there).values()} == {"cpu"}
    assert_same(everything(there), everything(here))


@pytest.mark.parametrize(
    ("model", "dtype", "tolerance"),
    [*((model, "float64", 1e-7) for model in SMALL), ("cnn", "float32", 1e-5), ("mlp", "float32", 1e-5)],
)
def test_cohorts_and_single_clients_agree(model: str, dtype: str, tolerance: float) -> None:
    """Up to rounding, on the GPU and compared with the CPU. In float32, BatchNorm over four samples amplifies
    differences."""
    here = _images(model, device="cpu", executor="sequential", dtype=dtype)[1]
    for executor in ("sequential", "cohort"):
        there, found = _images(model, executor=executor, dtype=dtype)
        assert_same(found, here, tolerance)
        assert not there.engine.fallbacks


@pytest.mark.parametrize("channels", [3, 64])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("precision", "products", "tolerance"),
    [
        ("bf16", "tf32", 4e-3),
        ("bf16", None, 4e-3),
        ("tf32", "tf32", 2e-3),
        ("tf32", "tf32x3", 1e-5),
        ("tf32", None, 2e-3),
        ("fp32", "ieee", 1e-5),
        ("fp32", None, 1e-5),
    ],
)
def test_convolutions_of_lanes(
    precision: str, products: str | None, tolerance: float, channels: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kernels and by columns, compared with float64, from which TF32 and bfloat16 differ in the third digit."""
    monkeypatch.setitem(KERNELS, precision, products)
    make_deterministic(torch.device(GPU), precision)
    lanes, filters, samples = 5, 64, 7
    geometry = Geometry((3, 3), (stride, stride), (1, 1))
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    x = torch.randn(samples, lanes * channels, 16, 16, device=GPU, dtype=kind, requires_grad=True)
    w = torch.randn(lanes, filters, 3, 3, channels, device=GPU, dtype=kind, requires_grad=True)
    out = convolve(x, w, geometry)
    wide, weights = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    right = functional.conv2d(wide, weights.permute(0, 1, 4, 2, 3).flatten(0, 1), None, stride, 1, groups=lanes)
    slopes = torch.randn_like(out)
    found = out, *torch.autograd.grad(out, (x, w), slopes)
    expected = right, *torch.autograd.grad(right, (wide, weights), slopes.double())
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).norm() < tolerance * other.norm()


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.bfloat16, 4e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("size", [(10, 64, 32, 32), (7, 40, 3, 5)])
def test_the_kernels_of_batchnorm_with_relu(
    size: tuple[int, ...], residual: bool, kind: torch.dtype, tolerance: float
) -> None:
    """Compared with float64, with the same numbers stopped by the ReLU."""
    x, more, g = torch.randn(3, *size, device=GPU).to(kind)
    statistics = (
        torch.rand(4, 2, size[1] // 2 + 3, device=GPU)[..., : size[1] // 2] + 0.5
    )  # of two lanes, in longer rows
    out, *moved = norm_relu._forward(x + 3, [more] if residual else [], [], *statistics, 0.3, 1e-5, True)
    wide, weight, bias = (t.double().requires_grad_() for t in (x + 3, *statistics[:2].flatten(1)))
    mean, var = statistics[2:].flatten(1).double()
    plain = functional.batch_norm(wide, mean, var, weight, bias, True, 0.3, 1e-5) + (more.double() if residual else 0)
    found = out, *moved[:2], *norm_relu._backward(g, x + 3, out, [], statistics[0], *moved[2:], residual, True, 1e-5)
    passed = g.double() * (out > 0)
    right = [plain.relu(), mean, var, *torch.autograd.grad(plain, (wide, weight, bias), passed), passed]
    for one, other in zip(found, right[: len(found)], strict=True):
        assert (one.double().view(other.shape) - other).norm() < tolerance * other.norm()


@pytest.mark.parametrize(("momentum", "decay", "nesterov"), [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.01, True)])
def test_the_kernel_s_step_of_sgd_has_the_bits_of_pytorch_s(momentum: float, decay: float, nesterov: bool) -> None:
    from bench.engine.lanes import sgd_kernel  # imports Triton

    lanes = 5
    convolution = torch.randn(lanes, 64, 3, 3, 32, device=GPU).permute(0, 1, 4, 2, 3)
    gradient = [torch.randn(lanes, 1001, device=GPU), convolution, convolution.bfloat16()]
    d = sum(piece[0].numel() for piece in gradient)
    state, lr = [*torch.randn(2 if momentum else 1, lanes, d, device=GPU)], torch.rand(lanes, device=GPU)
    found, right = (step(state, gradient, [], lr, momentum, decay, nesterov) for step in (sgd_kernel.sgd, plain_sgd))
    assert all(map(torch.equal, found, right))


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("d", [2 * 131, 397 * 4691, 2382 * 4691])
def test_spectra_in_two_steps(d: int, kind: torch.dtype, tolerance: float) -> None:
    x = torch.randn(3, d, dtype=torch.float64)
    z = dft.rfft(x.to(GPU, kind), "ortho")
    torch.testing.assert_close(z.cpu().cdouble(), torch.fft.rfft(x, norm="ortho"), rtol=0, atol=tolerance)
    torch.testing.assert_close(dft.irfft(z, d, "ortho").cpu().double(), x, rtol=0, atol=tolerance)


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
@pytest.mark.parametrize("d", [2 * 131, 5 * 131, 2**20, 397 * 4691, 2382 * 4691])
def test_scd_s_divergence_in_one_pass(d: int, direction: Any) -> None:
    x, teacher = torch.randn(3, d, dtype=torch.float64), torch.rand(3, d // 2 + 1, dtype=torch.float64)
    o = SpectralOptions(direction=direction)

    def term(one: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        whole: Any = SimpleNamespace(weights=one)
        return divergence(whole, teacher, 0.4, o)

    here = vmap(grad_and_value(term))(x, teacher)
    there = vmap(grad_and_value(term))(x.to(GPU, torch.float32), teacher.to(GPU, torch.float32))
    for one, other in zip(there, here, strict=True):
        assert (one.cpu().double() - other).norm() < 1e-4 * other.norm()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("model", SMALL)
def test_the_same_path_gives_the_same_bytes(model: str, executor: str, precision: str) -> None:
    first, second = (_images(model, executor=executor, precision=precision) for _ in range(2))
    assert first[0].path == second[0].path
    assert first[0].path["precision"] == precision
    assert first[0].path["convolutions"] == "kernels"
    assert not first[0].engine.fallbacks
    assert_same(first[1], second[1], 0)


@pytest.mark.parametrize("method", ["ditto", "scd"])
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("model", SMALL)
def test_recorded_steps_give_the_same_bytes(
    model: str, executor: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCD's steps have Fourier transforms, ResNet-18's of a length that is transformed in two steps."""
    found = []
    for after in (10**9, 2):
        monkeypatch.setattr(backends, "_RECORD_AFTER", after)
        federation, state = _images(model, method=method, executor=executor)
        found.append(state)
        steps = federation.engine._trainer.steps.by_recipe.values()
        assert any(step._recorded for step in steps) == (after == 2)
        assert not any(made is step._eager for step in steps for made in step._recorded.values())
    assert_same(found[1], found[0], 0)


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "ditto", "scd"])
def test_captured_steps_stay_right_while_others_take_and_free_memory(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph reads addresses; constants that nobody held were overwritten after some rounds."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    here, there = toy(method, model="mlp"), toy(method, model="mlp", device=GPU)
    for _ in range(6):
        here.advance()
        there.advance()
        gc.collect()
        torch.full((2**22,), torch.nan, device=GPU)
    there.engine.check_recordings(math.inf)
    assert there.engine.calls["cudagraph"] > 0
    assert not there.engine.failed
    assert_same(everything(there), everything(here))


def test_captures_follow_each_other_after_one_that_failed() -> None:
    """The pool outlives the last graph of a cell; stream and generator are as they were."""
    x = torch.ones(3, device=GPU)
    with pytest.raises(RuntimeError):
        cuda_graph(lambda: x.fill_(x.sum().item()))
    torch.rand(3, device=GPU)
    for value in (1.0, 2.0):
        again = cuda_graph(functools.partial(x.fill_, value))
        x.zero_()
        again()
        assert x.tolist() == [value] * 3
        del again
        gc.collect()
