"""Sizes in which the engine works: clients and samples at a time. Without torch, for what is said before a run."""

KEEP_NORMALISED = 256 * 2**20
"""Bytes of normalised samples that are kept; larger sets are normalised batch by batch."""

_CACHE = 2**20  # bytes of weights, of what a core's second cache holds
_LEAST, _MOST = 2, 5  # lanes on a CPU; more than that gain nothing, and stand idle where clients are unequal


def lanes_on(device: str, size: int) -> int:
    """Clients per call of a cohort for models of so many bytes: on a CPU as many as a core's cache holds."""
    return min(_MOST, max(_LEAST, _CACHE // max(1, size))) if device == "cpu" else 64


def samples_at_once(device: str, *, convolutional: bool) -> int:
    """Samples per call of one model: of a CNN on a CPU so many that its maps stay in the cache."""
    return 100 if convolutional and device == "cpu" else 500
