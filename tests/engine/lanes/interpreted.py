"""Runs the kernels on a CPU in Triton's interpreter, which must be selected before Triton is imported.

Prints, as JSON, the differences of convolutions, BatchNorm with ReLU and steps of SGD from PyTorch's in float64,
relative to 1 + the size of the number, and those of spectra and their divergence, and whether the steps of SGD have
the bits of PyTorch's in float32. The interpreter has no bfloat16, so images are float32 and gradients float16.
"""

import itertools
import json
import math
from unittest import mock

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


def weights_in_order(shape: tuple[int, ...]) -> bool:
    """Whether weights, which are slices of longer rows, have the right order in 16 bits."""
    rows = torch.randn(*shape[:-4], math.prod(shape[-4:]) + 5)
    w = rows[..., 5:].unflatten(-1, shape[-4:])
    found = kernels.weights_in_order(w, torch.float16)
    return found.is_contiguous() and torch.equal(found, w.movedim(-3, -1).half())


def norm_relu(shape: tuple[int, int, int, int], residual: bool, padded: bool, relu: bool) -> float:
    """The largest error of BatchNorm with ReLU and its derivatives; the mean is large compared with the deviation.

    Of two lanes the second has half of the samples where it is padded. Parameters are slices of longer rows.
    """
    x, g, more = torch.randn(3, *shape)
    x, channels, lanes = x + 30, torch.rand(4, shape[1]) + 0.5, 2
    wide, weight, bias, added = (t.double().requires_grad_() for t in (x, channels[0], channels[1], more))
    mean, var = channels[2:].double()
    samples = [[shape[0]], [(shape[0] + 1) // 2 if padded else shape[0]]]
    mask = (torch.arange(shape[0]) < torch.tensor(samples)).float()
    outs, width = [], shape[1] // lanes
    for lane in range(lanes):
        part, real = slice(lane * width, (lane + 1) * width), mask[lane].bool()
        of_lane = torch.zeros_like(wide[:, part])
        arguments = mean[part], var[part], weight[part], bias[part], True, 0.3, 1e-3
        of_lane[real] = functional.batch_norm(wide[real][:, part], *arguments)
        outs.append(of_lane)
    g = g * mask.T.repeat_interleave(width, 1)[:, :, None, None]
    out = torch.cat(outs, 1) + (added if residual else 0)
    out = out.relu() if relu else out
    leaves = (wide, weight, bias, added) if residual else (wide, weight, bias)
    right = out, mean, var, *torch.autograd.grad(out, leaves, g.double())
    rest, masks = [more] if residual else [], [mask] if padded else []
    in_rows = [
        torch.cat([t.view(lanes, -1), torch.full((lanes, i), torch.nan)], 1)[:, :width]
        for i, t in enumerate(channels, 1)
    ]
    forward, *moved, middle, scale = norm_kernels.forward(x, rest, masks, *in_rows, 0.3, 1e-3, relu)
    gradients = norm_kernels.backward(g, x, forward, masks, in_rows[0], middle, scale, residual, relu)
    flat = (t.flatten() if t.dim() == 2 else t for t in (*moved, *gradients))
    found = torch.where(g != 0, forward, out.float()), *flat  # what padding becomes is nobody's
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


def spectra(a: int, b: int, generalised: bool, first: bool) -> float:
    """The largest error of three lanes' divergences and their gradients, and of both transforms.

    One lane has no frequencies at all. Lanes have the same teacher or one each. In memory, vectors begin at an odd
    number, which no complex number can.
    """
    d = a * b
    x, often = torch.randn(3 * d + 1)[1:].view(3, d), torch.randint(0, 3, (d // 2 + 1,)).float()
    x[0] = 0
    teachers = 1 if first else 3
    other, eps = torch.rand(teachers, d // 2 + 1).expand(3, -1), (torch.rand(teachers) + 0.1).expand(3)
    up = torch.randn(teachers).expand(3)
    with (
        mock.patch.object(dft, "_factors", return_value=(a, b)),
        mock.patch.object(dft.tensors, "triton_kernels", return_value=dft_kernels),
    ):
        sums, slopes = dft._divergence(x, other, often, eps, "ortho", generalised, first)
        found = [sums, dft._gradient(slopes, up, d, "ortho")]
        if b > 1:
            z = dft._transform(x, d, "ortho", False)
            found += z, dft._transform(z, d, "ortho", True)
    wide = x.double().requires_grad_()
    spectrum = torch.fft.rfft(wide, norm="ortho")
    p, q = (spectrum.abs(), other) if first else (other, spectrum.abs())
    terms = p * torch.log((p + eps[:, None]) / (q + eps[:, None])) + (q - p if generalised else 0)
    sums = (often * terms).sum(1)
    right = [sums, *torch.autograd.grad(sums, wide, up.double(), retain_graph=True), spectrum, x]
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(found, right, strict=False))


if __name__ == "__main__":
    torch.manual_seed(0)
    convolutions = {products: [furthest(case, products) for case in CASES] for products in ("ieee", "tf32x3")}
    steps = [sgd(*options) for options in itertools.product((0.0, 0.9), (0.0, 0.01), (False, True), (False, True))]
    factors = (2, 2), (3, 34), (40, 67), (71, 33), (600, 3), (34, 34), (7, 1), (1500, 1)
    flags = itertools.cycle(itertools.product((False, True), repeat=2))
    further = [spectra(*pair, *both) for pair, both in zip(factors, flags, strict=False)]
    shapes = (2, 20, 3, 3), (7, 16, 8, 5), (6, 48, 1, 1)
    norms = [norm_relu(*options) for options in itertools.product(shapes, *[(False, True)] * 3)]
    sizes = (2, 3, 5, 3, 3), (3, 2, 2, 70, 5, 7), (2, 4, 2100, 1, 1)
    print(
        json.dumps(
            {
                "convolutions": convolutions,
                "norm_relu": norms,
                "sgd": steps,
                "spectra": further,
                "weights_in_order": [weights_in_order(size) for size in sizes],
            }
        )
    )
