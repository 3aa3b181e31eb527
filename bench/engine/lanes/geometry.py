"""Sizes of a convolution."""

from typing import NamedTuple


class Geometry(NamedTuple):
    """Kernel size, stride and zero padding of a two-dimensional convolution, vertical and horizontal."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the output for an image of this size."""
        rows, columns = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip((height, width), *self, strict=True)
        )
        return rows, columns
