"""Settings of channels, noise and attacks, in short."""

from typing import Any

from bench.config.validation import check_setting

SIZES = [9, 8, 8, 7, 6]


FORGED = ["noise", "sign_flip", "scale", "alie", "min_max", "ipm"]


def attack(name: str, share: float = 0.4, **settings: Any) -> dict[str, Any]:
    return check_setting("attack", {"name": name, "share": share, **settings}) or {}


def channel(*names: str) -> tuple[dict[str, Any], ...]:
    return tuple(check_setting("channel", list(names)))


CLIP = {"name": "clip", "norm": 0.5}


ADAPTIVE = {"name": "adaptive_clip", "norm": 0.5}


def noisy(
    on: str = "sum", noise: float = 1.0, clip: dict[str, Any] = CLIP, after: tuple[str, ...] = ()
) -> tuple[dict[str, Any], ...]:
    return tuple(check_setting("channel", [clip, {"name": "gaussian", "noise": noise, "on": on}, *after]))
