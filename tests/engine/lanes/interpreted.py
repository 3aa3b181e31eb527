"""Runs the kernels on a CPU in Triton's interpreter, which must be selected before Triton is imported.

Prints, as JSON, the differences of convolutions, BatchNorm with ReLU and steps of SGD from PyTorch's in float64,
relative to 1 + the size of the number, those of the divergence of spectra from PyTorch's in float32, and whether the
steps of SGD have the bits of PyTorch's in float32. The
interpreter has no bfloat16, so images are float32 and gradients float16.
"""

import itertools
import json

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn import grad as derivatives

from bench import dft, dft_kernels
from bench.engine.lanes import kernels, norm_kernels, sgd_kernel
from bench.engine.lanes.common import Geometry
from bench.engine.lanes.sgd import plain_sgd

# Lanes, samples, channels, filters, height, width, kernel, stride, padding; for full, partial and several blocks.
CASES = (
    (2, 3, 3, 5, 7, 6, (3, 3), (1, 1), (1, 1)),
    (3, 2, 4, 70, 8, 8, (3, 3), (2, 2), (1, 1)),
    (2, 2, 70, 4, 6, 6, (1, 1), (2, 2), (0, 0)),
    (1, 4, 2, 3, 9, 8, (5, 3), (1, 2), (2, 0)),
    (2, 1, 2, 2, 5, 5, (3, 3), (1, 1), (0, 0)),
    (2, 3, 16, 80, 8, 8, (3, 3), (1, 1), (1, 1)),
)


def furthest(
    case: tuple[int, int, int, int, int, int, tuple[int, int], tuple[int, int], tuple[int, int]], products: str
) -> float:
    """The largest error of the three kernels."""
    lanes, samples, channels, filters, height, width, kernel, stride, padding = case
    geometry = Geometry(kernel, stride, padding)
    x, w = torch.randn(samples, lanes * channels, height, width), torch.randn(lanes, filters, *kernel, channels)
    g = torch.randn(samples, lanes * filters, *geometry.output(height, width))
    found = (
        kernels.convolve(x, w, geometry, products),
        kernels.of_input(g, w, geometry, (height, width), products),
        kernels.of_weight(g, x, geometry, lanes, products),
    )

    def in_lanes(flat: Tensor) -> Tensor:
        return flat.unflatten(0, (lanes, -1)).permute(0, 1, 3, 4, 2)

    wide, flat, slopes = x.double(), w.double().permute(0, 1, 4, 2, 3).flatten(0, 1), g.double()
    right = (
        functional.conv2d(wide, flat, None, stride, padding, groups=lanes),
        derivatives.conv2d_input(wide.shape, flat, slopes, stride, padding, groups=lanes),
        in_lanes(derivatives.conv2d_weight(wide, flat.shape, slopes, stride, padding, groups=lanes)),
    )
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(found, right, strict=True))


def norm_relu(shape: tuple[int, int, int, int], residual: bool, padded: bool, relu: bool) -> float:
    """The largest error of BatchNorm with ReLU and its derivatives; the mean is large compared with the deviation.

    Where it is padded there are two lanes, of which the second has half of the samples.
    """
    x, g, more = torch.randn(3, *shape)
    x, channels, lanes = x + 30, torch.rand(4, shape[1]) + 0.5, 2 if padded else 1
    wide, weight, bias, added = (t.double().requires_grad_() for t in (x, channels[0], channels[1], more))
    mean, var = channels[2:].double()
    mask = (torch.arange(shape[0]) < torch.tensor([[shape[0]], [(shape[0] + 1) // 2]])).float()
    outs, width = [], shape[1] // lanes
    for lane in range(lanes):
        part, real = slice(lane * width, (lane + 1) * width), mask[lane].bool()
        of_lane = torch.zeros_like(wide[:, part])
        arguments = mean[part], var[part], weight[part], bias[part], True, 0.3, 1e-3
        of_lane[real] = functional.batch_norm(wide[real][:, part], *arguments)
        outs.append(of_lane)
    g = g * mask[:lanes].T.repeat_interleave(width, 1)[:, :, None, None]
    out = torch.cat(outs, 1) + (added if residual else 0)
    out = out.relu() if relu else out
    leaves = (wide, weight, bias, added) if residual else (wide, weight, bias)
    right = out, mean, var, *torch.autograd.grad(out, leaves, g.double())
    rest, masks = [more] if residual else [], [mask] if padded else []
    forward, *moved, middle, scale = norm_kernels.forward(x, rest, masks, *channels, 0.3, 1e-3, relu)
    gradients = norm_kernels.backward(g, x, forward, masks, channels[0], middle, scale, residual, relu)
    found = torch.where(g != 0, forward, out.float()), *moved, *gradients  # what padding becomes is nobody's
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(found, right, strict=True))


def sgd(momentum: float, decay: float, nesterov: bool, further: bool) -> tuple[float, bool]:
    """The largest error of a step of SGD in three lanes, one of them idle, and whether its bits are PyTorch's.

    The gradient's pieces are a vector, a convolution's weights as they lie in memory, and both in 16 bits.
    """
    convolution = torch.randn(2, 3, 7, 3, 2, 90).permute(0, 1, 2, 5, 3, 4)
    vector = torch.randn(2, 3, 1100)
    gradient = [vector[0], convolution[0], vector[1].half(), convolution[1].half()]
    d = sum(piece[0].numel() for piece in gradient)
    state, lr = [*torch.randn(2 if momentum else 1, 3, d)], torch.tensor([0.1, 0.0, 3.0])
    more = [torch.randn(3, d)] if further else []
    rest = momentum, decay, nesterov
    found, same = sgd_kernel.sgd(state, gradient, more, lr, *rest), plain_sgd(state, gradient, more, lr, *rest)
    right = plain_sgd([t.double() for t in state], gradient, more, lr.double(), *rest)
    error = max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(found, right, strict=True))
    return error, all(map(torch.equal, found, same))


def spectra(numbers: int, generalised: bool, first: bool) -> float:
    """The largest error of the divergence and its gradient in three lanes, and of numbers in another order."""
    z, other = torch.randn(3, numbers, dtype=torch.complex64), torch.rand(3, numbers)
    z[0, 0] = 0
    often, eps, up = torch.randint(0, 3, (numbers,)).float(), torch.rand(3) / 1000, torch.randn(3)
    index = torch.randint(0, numbers, (2 * numbers,)).int()
    sign = torch.where(torch.rand(2 * numbers) < 0.5, 1.0, -1.0)
    order, right = (torch.empty(3, 2 * numbers, dtype=torch.complex64) for _ in range(2))
    dft_kernels.gather(z, index, sign, order)
    dft._gather(z, index, sign, right)
    d = 2 * numbers - 1 - numbers % 2
    found = dft_kernels.divergence(z, other, often, eps, generalised, first), order
    found += (dft_kernels.slopes(z, other, often, eps, up, 0 if d % 2 else d // 2, generalised, first),)
    expected = dft._divergence(z, other, often, eps, generalised, first), right
    expected += (dft._slopes(z, other, often, eps, up, d, generalised, first),)
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(found, expected, strict=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    convolutions = {products: [furthest(case, products) for case in CASES] for products in ("ieee", "tf32x3")}
    steps = [sgd(*options) for options in itertools.product((0.0, 0.9), (0.0, 0.01), (False, True), (False, True))]
    further = [spectra(*options) for options in itertools.product((2, 7, 2500), (False, True), (False, True))]
    shapes = (2, 20, 3, 3), (7, 16, 8, 5), (6, 48, 1, 1)
    norms = [norm_relu(*options) for options in itertools.product(shapes, *[(False, True)] * 3)]
    print(json.dumps({"convolutions": convolutions, "norm_relu": norms, "sgd": steps, "spectra": further}))
