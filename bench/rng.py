"""Every random draw has an address; there is no global generator.

An address is a tuple such as `(seed, "batches", round, client, stream, epoch)`. It is hashed with BLAKE2 into the key
of a counter-based generator (Philox), so a draw depends on nothing but its address: not on the method, the phase, the
order of clients, the process, or the device.
"""

import hashlib

import numpy as np

Address = tuple[int | str, ...]


def key(*address: int | str) -> int:
    """128-bit stable hash of an address."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(*address: int | str) -> np.random.Generator:
    """The generator at an address; equal addresses give equal streams."""
    return np.random.Generator(np.random.Philox(key=key(*address)))
