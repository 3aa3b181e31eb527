"""The geometry of a convolution."""

from typing import NamedTuple


class Geometry(NamedTuple):
    """Vertical and horizontal sizes of a two-dimensional convolution's kernel, stride and padding with zeros."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of what comes out of a picture."""
        rows, columns = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip((height, width), *self, strict=True)
        )
        return rows, columns
