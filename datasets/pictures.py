"""Pictures as 8-bit RGB, by one rule for all pictures of a data set: their depth, and what shows where they are
transparent."""

import io
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.data import Floats
from bench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDINGS = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".ppm", ".pgm",
    ".pbm", ".pnm", ".tga",
)  # fmt: skip
"""Endings of the files that are taken for pictures, in small letters. A list of our own, as Pillow's depends on its
version and has formats that are documents, films or tables."""

_FILMS = ("GIF", "PNG", "WEBP", "AVIF", "TIFF")  # formats of which a file may hold several pictures of equal rank


class EncodedPicture(NamedTuple):
    """A picture that lies in another file: the `content` of its own, and the `place` for messages."""

    place: str
    content: bytes

    def __str__(self) -> str:
        return self.place


class Tones(NamedTuple):
    """The rule by which the pictures of a data set become 8-bit RGB.

    Attributes:
        white: the value that becomes 255 in pictures of more than 8 bits; larger ones do, too.
        background: grey level behind transparent pixels; None: alpha is dropped, and colours are as they are stored.
        deep: number of pictures with values above 255, or floating ones.
        transparent: number of pictures that are not opaque.
        coarse: number of colour pictures of 16 bits, of which Pillow keeps the upper 8.
        films: number of files that hold further pictures, which are not read.
    """

    white: float = 255.0
    background: int | None = None
    deep: int = 0
    transparent: int = 0
    coarse: int = 0
    films: int = 0

    def notes(self) -> list[str]:
        """Notes to the user about the rule, one line each."""
        shade = "black" if self.background == 0 else "white"
        said = (
            (self.deep, f"pictures of more than 8 bits ({self.deep}): {self.white:g} is white in all of them"),
            (self.transparent, f"pictures that are transparent in part ({self.transparent}): put on {shade}"),
            (
                self.coarse,
                f"colour pictures of 16 bits ({self.coarse}): only the upper 8 bits of their values are read",
            ),
            (self.films, f"files of several pictures ({self.films}): only the first is read"),
        )
        return [line for count, line in said if count]


def survey(files: Iterable[Path | EncodedPicture]) -> Tones:
    """Find how all pictures of a data set become 8-bit RGB; only pictures that are deep or transparent are decoded.

    White is the largest value of all deep pictures, rounded up to 2^k - 1, at least 255: 4095 for 12-bit data in 16-bit
    files. For floating pictures within 0 .. 1 it is 1. The background is white, or black where the visible pixels of
    the transparent pictures are brighter than medium grey on average, so that shapes of one colour stay visible.

    Raises:
        UserError: a picture cannot be read, or has negative values or such that are not finite.
    """
    largest, floating, deep, transparent, coarse, films = 0.0, True, 0, 0, 0, 0
    light, weight = 0.0, 0.0
    for file in files:
        with _opened(file) as picture:
            films += picture.format in _FILMS and getattr(picture, "is_animated", False)
            if _is_deep(picture):
                values = _values(file, picture)
                largest, whole = max(largest, float(values.max())), picture.mode != "F"
                floating &= not whole
                deep += not whole or float(values.max()) > 255
                continue
            coarse += ";16" in str(picture.tile)
            if picture.has_transparency_data:
                layers = np.asarray(picture.convert("RGBA"), np.float64)
                alpha = layers[..., 3]
                transparent += bool(alpha.min() < 255)
                light, weight = light + (layers[..., :3].mean(axis=2) * alpha).sum(), weight + alpha.sum()
    white = 1.0 if floating and deep and largest <= 1 else float(2 ** max(8, int(np.ceil(np.log2(largest + 1)))) - 1)
    return Tones(white, 0 if light > 127.5 * weight else 255, deep, transparent, coarse, films)


def picture(file: Path | EncodedPicture, size: int | None, tones: Tones = Tones()) -> npt.NDArray[np.uint8]:  # noqa: B008 (immutable)
    """Read one picture `[3, height, width]` as RGB, upright, resized (bilinear) if a size is given.

    Raises:
        UserError: the picture cannot be read.
    """
    from PIL import Image, ImageOps

    with _opened(file) as opened:
        upright = ImageOps.exif_transpose(opened)
        if _is_deep(upright):
            scaled = np.clip(np.rint(_values(file, upright) * (255 / tones.white)), 0, 255)
            shown = Image.fromarray(scaled.astype(np.uint8)).convert("RGB")
        elif tones.background is not None and upright.has_transparency_data:
            layers = upright.convert("RGBA")
            behind = Image.new("RGBA", layers.size, (tones.background,) * 3 + (255,))
            shown = Image.alpha_composite(behind, layers).convert("RGB")
        else:
            shown = upright.convert("RGB")
    if size is not None:
        shown = shown.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(shown).transpose(2, 0, 1)


def read_pictures(files: Sequence[Path | EncodedPicture], size: int | None, tones: Tones) -> npt.NDArray[np.uint8]:
    """Read pictures `[n, 3, height, width]` as `picture` does.

    Raises:
        UserError: one cannot be read, or they differ in size.
    """
    images: list[npt.NDArray[np.uint8]] = []
    for file in files:
        images.append(picture(file, size, tones))
        if (shape := images[-1].shape) != (usual := images[0].shape):
            raise UserError(
                f"{file}: a picture of {shape[2]} x {shape[1]} pixels, others have {usual[2]} x {usual[1]}; set the "
                "option `size` to resize them all"
            )
    return np.stack(images)


@contextmanager
def _opened(file: Path | EncodedPicture) -> "Iterator[Any]":
    """Open a picture for a block; an error of Pillow in the block becomes a message of one line."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file.content) if isinstance(file, EncodedPicture) else file) as opened:
            yield opened
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # SyntaxError for a broken PNG
        raise UserError(f"{file} cannot be read as a picture ({error}); replace or remove it") from None


def _is_deep(picture: Any) -> bool:
    """Whether a picture's values are integers of more than 8 bits, or floating."""
    return picture.mode in ("I", "F") or picture.mode.startswith("I;")


def _values(file: Path | EncodedPicture, picture: Any) -> Floats:
    values = np.asarray(picture, np.float64)
    if not np.isfinite(values).all() or values.min() < 0:
        raise UserError(
            f"{file} has values that are negative or not finite, so it is unclear which one is black; write the "
            "pictures with values from 0, or as floating arrays of an .npz file (data set `npz`)"
        )
    return values
