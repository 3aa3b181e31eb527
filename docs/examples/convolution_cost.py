"""What do 5 x 5 convolutions take by Fourier transforms and directly, and how far are they apart?

    python docs/examples/convolution_cost.py

Prints milliseconds of one thread, the medians of calls that take turns, for 10 maps of 32 channels to 64, and the
largest difference over the largest value.
"""

import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

REPEATS = 200


def pairs(side: int) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
    """By name, the Fourier way and the direct way of one computation."""
    normal = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
    x, weight = normal(10, 32, side, side), normal(64, 32, 5, 5)
    last = x.contiguous(memory_format=torch.channels_last)
    gradient = normal(10, 64, side - 4, side - 4)
    gradient_last = gradient.contiguous(memory_format=torch.channels_last)

    def fourier(a: Tensor, b: Tensor, margin: int = 0) -> Tensor:
        return torch._nnpack_spatial_convolution(a.contiguous(), b.contiguous(), None, margin)

    return {
        "forward": (lambda: fourier(x, weight), lambda: torch.conv2d(last, weight)),
        "gradient of input": (
            lambda: fourier(gradient, weight.flip(2, 3).transpose(0, 1), 4),
            lambda: conv2d_input(x.shape, weight, gradient_last),
        ),
        "gradient of weights": (
            lambda: fourier(x.transpose(0, 1), gradient.transpose(0, 1)).transpose(0, 1),
            lambda: conv2d_weight(last, weight.shape, gradient_last),
        ),
    }


def seconds(call: Callable[[], Tensor]) -> float:
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    assert torch.backends.nnpack.is_available(), "this PyTorch has no NNPACK"
    print(f"{'':32}{'Fourier':>10}{'direct':>10}{'difference':>14}")
    for side in (12, 14):
        for name, (ours, direct) in pairs(side).items():
            right = direct()
            difference = float((ours() - right).abs().max() / right.abs().max())
            taken = [(seconds(ours), seconds(direct)) for _ in range(REPEATS)]
            a, b = (1e3 * statistics.median(times) for times in zip(*taken, strict=True))
            print(f"{name + f', {side} x {side}':32}{a:10.2f}{b:10.2f}{difference:14.1e}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
