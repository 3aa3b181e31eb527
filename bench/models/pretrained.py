"""Initial weights from a file with a state dict written by `torch.save`, such as torchvision's files."""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import UserError

_COUNTERS = "num_batches_tracked"  # a buffer of BatchNorm that models here do not have


def pretrained(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """Values for a network's tensors, by the network's names, in the file's dtype.

    Tensors are matched by their order, because names differ: torchvision's `fc.weight` is `head.weight` here. The last
    layer is left out if its shape in the file is another one, as with another number of classes.

    Args:
        path: the file.
        net: the network, on any device; its values are not read.

    Raises:
        UserError: there is no such file, it holds no state dict, or its tensors do not fit the network.
    """
    stat = _found(path).stat()
    theirs = _read(path.absolute(), max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_size)
    ours = net.state_dict()
    body = [name for name in ours if not name.startswith("head.")]
    head = [name for name in ours if name.startswith("head.")]
    found = dict(zip([*body, *head], theirs.items(), strict=False))
    if len(theirs) != len(ours):
        raise UserError(f"pretrained {path}: {len(theirs)} tensors, and the model has {len(ours)}")
    for name in body:
        own_name, value = found[name]
        kind, own_kind = name.rpartition(".")[2], own_name.rpartition(".")[2]
        if (kind, ours[name].shape) != (own_kind, value.shape):
            raise UserError(
                f"pretrained {path}: {own_name} {tuple(value.shape)} does not fit the model's {name} "
                f"{tuple(ours[name].shape)}"
            )
    fits = all(ours[name].shape == found[name][1].shape for name in head)
    return {name: value for name, (_, value) in found.items() if fits or name in body}


def _found(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"pretrained {path}: there is no such file")
    return path


@functools.lru_cache(maxsize=2)
def _read(path: Path, mtime: int, size: int) -> dict[str, Tensor]:
    """The tensors of the file without counters; `mtime` and `size` identify its version in the cache."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any error is possible, depending on the content of the file
        raise UserError(f"pretrained {path}: not a file of `torch.save` ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"pretrained {path}: not a state dict; save `model.state_dict()`")
    return {name: value for name, value in content.items() if not name.endswith(_COUNTERS)}
