"""Random generators by address; there is no global generator.

An address is a tuple such as `(seed, "batches", round, client, stream, epoch)`. It is hashed with BLAKE2 into the key
of a counter-based generator (Philox), so a draw depends only on its address, and not on the method, the phase, the
order of clients, the process, or the device.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

Address = tuple[int | str, ...]


def key(*address: int | str) -> int:
    """128-bit stable hash of an address."""
    return int.from_bytes(_digest(address), "little")


def generator(*address: int | str) -> np.random.Generator:
    """The generator at an address; equal addresses give equal streams."""
    words: Any = _Key(address)  # `Any`: numpy's type hints do not accept every ISeedSequence
    return np.random.Generator(np.random.Philox(words))


def _digest(address: Address) -> bytes:
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in address])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _Key(ISeedSequence):
    """Passes the key to Philox. This is faster than `key=`, which also asks the operating system for a seed."""

    def __init__(self, address: Address) -> None:
        self._words = np.frombuffer(_digest(address), "<u8")

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint64]:
        return self._words
