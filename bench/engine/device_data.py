"""All samples on the device, and the positions of each owner's samples. Steps read them without a data loader.

A data set that is too large for the device stays in the host's memory or in a file, and its batches are copied. If
there are too many models, they too are kept on the host and copied for their training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.data import Dataset, Indices, Partition
from bench.engine.batches import draw_subset
from bench.engine.sizes import KEEP_NORMALISED
from bench.requests import Samples
from bench.rng import generator

SERVER = -1
GATHER = 32 * 2**20  # bytes of inputs that are gathered at once
ROW = 16  # bytes; GPU libraries choose other algorithms for tensors whose address is not a multiple of this


class Normalisation(NamedTuple):
    """Mean and standard deviation of stored inputs, to go with `[n, channels, ...]`.

    Their dtype is that of the arithmetic: the cell's for bytes, and float64 for floating inputs, because a large mean
    would leave little of them in a smaller one.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, data: Dataset, dtype: torch.dtype) -> "Normalisation":
        """The normalisation of a data set for a cell of that dtype; empty for tokens."""
        shape = (1, -1, *([1] * (data.x.ndim - 2)))
        unit = 255.0 if data.x.dtype == np.uint8 else 1.0
        exact = torch.float64 if data.floating else dtype
        mean, std = (torch.tensor(values, dtype=torch.float64) * unit for values in (data.mean, data.std))
        return cls(mean.view(shape).to(exact), std.view(shape).to(exact))

    def to(self, device: torch.device) -> "Normalisation":
        """Copy mean and standard deviation to a device."""
        return Normalisation(self.mean.to(device), self.std.to(device))

    def apply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise stored inputs `[n, channels, ...]`: the result is what networks see."""
        return ((x.to(self.mean.dtype) - self.mean) / self.std).to(dtype)


@dataclass(frozen=True)
class Pool:
    """Samples on the device.

    Attributes:
        x: inputs as they are stored.
        y: labels.
        normalisation: how inputs are normalised when they are taken; None if they are stored as networks see them, or
            are tokens.
        blank: the value of an empty pixel.
        dtype: of inputs that networks see.
    """

    x: Tensor
    y: Tensor
    normalisation: Normalisation | None
    blank: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, data: Dataset, device: torch.device, dtype: torch.dtype) -> "Pool":
        """Put a data set on the device; a small one is normalised once and for all."""
        x = torch.from_numpy(data.filled).to(home_of(data.x.nbytes, device))
        y = torch.from_numpy(data.y).to(device)
        if data.vocabulary:
            return cls(x, y, None, torch.zeros(0), dtype)
        normalisation = Normalisation.of(data, dtype).to(device)
        empty = torch.from_numpy(data.blank).to(device).view(normalisation.mean.shape)
        pool = cls(x, y, normalisation, normalisation.apply(empty, dtype), dtype)
        if x.dtype == dtype and not any(data.mean) and set(data.std) == {1.0}:  # nothing to do, as for `synthetic`
            return replace(pool, normalisation=None)
        if data.x.size * dtype.itemsize > KEEP_NORMALISED:
            return pool
        at_once = max(1, GATHER // (dtype.itemsize * x[:1].numel()))
        parts = torch.split(torch.arange(len(y), device=device), at_once)
        return replace(pool, x=torch.cat([pool.take(part)[0] for part in parts]), normalisation=None)

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs, normalised or int64 tokens, and labels at positions of any shape."""
        # `self.x[at]` is the same and takes four times as long for samples as small as digits.
        at = positions.reshape(-1)
        x, y = self.x.index_select(0, at.to(self.x.device)).to(at.device), self.y.index_select(0, at)
        if self.normalisation is not None:
            x = self.normalisation.apply(x, self.dtype)
        elif not x.is_floating_point():
            x = x.long()
        return x.view(*positions.shape, *self.x.shape[1:]), y.view(positions.shape)

    def crop_flip(self, x: Tensor, codes: Tensor) -> Tensor:
        """Images padded by 4 empty pixels, cropped to their size and perhaps mirrored.

        Args:
            x: `[..., channels, height, width]`.
            codes: `[...]` numbers in `0 .. 161`: 9 x 9 places, times 2.
        """
        images = x.reshape(-1, *x.shape[-3:])
        _, channels, height, width = images.shape
        code = codes.reshape(-1, 1)
        rows = code // 2 // 9 + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(len(images), width)
        columns = code // 2 % 9 + torch.where(code % 2 == 1, columns.flip(1), columns)
        padded = torch.nn.functional.pad(images - self.blank, (4, 4, 4, 4)) + self.blank
        sample = torch.arange(len(images), device=x.device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
        return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]].view(x.shape)


def channels_last(x: Tensor) -> Tensor:
    """Images `[n, channels, height, width]` with the channels of a pixel side by side; other samples as they are."""
    # `contiguous` would return images of one channel as they are, and all layers would take the other layout.
    return x.clone(memory_format=torch.channels_last) if x.dim() == 4 else x


def home_of(size: int, device: torch.device) -> torch.device:
    """Choose where samples of so many bytes lie: on the device, unless they would take over half of its free memory."""
    if device.type == "cuda" and 2 * size > torch.cuda.mem_get_info(device)[0]:
        return torch.device("cpu")
    return device


class DeviceData:
    """The samples of all clients and the public set, as positions in two pools.

    Args:
        pooled: the clients whose training samples the server may have, all at once.

    Attributes:
        device: where training and evaluation run.
        home: where models are kept between trainings: on the device, or in the host's memory.
        changes: the cell's partition with its changes, and its `stages`: the data before each change.
        stage: the number of the stage whose samples the clients have now.
        partition: that stage.
        counts: `[clients, classes]` training samples of it.
        largest: training samples of the client that has most.
    """

    def __init__(
        self,
        data: Dataset,
        partition: Partition,
        *,
        pooled: Sequence[int] = (),
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        public: Dataset | None = None,
        holdout: float = 0.0,
        offload: bool = False,
    ) -> None:
        self.local = Pool.of(data, device, dtype)
        self.public = Pool.of(public, device, dtype) if public is not None else None
        self.public_size = len(public.y) if public is not None else 0
        self.public_classes = public.num_classes if public is not None else 0
        self.num_classes = data.num_classes
        self.device = device
        self.home = torch.device("cpu") if offload else device
        self.changes = partition
        self.stages = partition.stages
        self._labels = data.y
        self._pooled = pooled
        self._seed = seed
        self._share = holdout
        self.stage = -1
        self.enter(0)

    def enter(self, stage: int) -> None:
        """Let the clients have the samples of a stage from now on."""
        if stage == self.stage:
            return
        self.stage, partition = stage, self.stages[stage]
        self.partition = partition
        self.counts = np.stack(
            [np.bincount(self._labels[indices], minlength=self.num_classes) for indices in partition.train]
        )
        self.largest = max(1, *(len(indices) for indices in partition.train))
        self._holdout = [self._draw_holdout(self._seed, i, self._share) for i in range(len(partition))]
        self._earlier = [self._draw_earlier(i) for i in range(len(partition))]

    def pool(self, samples: Samples) -> Pool:
        """The pool that a kind of samples lies in."""
        if samples == "public":
            if self.public is None:
                raise ValueError("the method asks for a public set and the cell has none")
            return self.public
        return self.local

    def to_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device."""
        return tensor if self.home == self.device else tensor.to(self.device, non_blocking=True)

    def empty_rows(self, count: int, like: Tensor) -> Tensor:
        """Rows `[count, ...]` on the device for tensors such as `like`.

        On a GPU each vector begins at a multiple of `ROW` bytes, as one that lies alone does: where it has been trained
        must not decide which algorithm computes with it, or a resumed cell would have other bytes.
        """
        if self.device.type == "cpu" or like.dim() != 1:
            return torch.empty((count, *like.shape), dtype=like.dtype, device=self.device)
        whole = -(-like.nbytes // ROW) * ROW // like.itemsize
        return torch.empty((count, whole), dtype=like.dtype, device=self.device)[:, : len(like)]

    def to_home(self, tensor: Tensor) -> Tensor:
        """Move a tensor to where models are kept. It may be read there only after the device has been waited for."""
        if self.home == self.device:
            return tensor
        pinned = self.device.type == "cuda"  # memory that a GPU writes to by itself
        return torch.empty_like(tensor, device=self.home, pin_memory=pinned).copy_(tensor, non_blocking=True)

    def positions(self, owner: int, samples: Samples, subset: int | None = None, round: int = 0) -> Indices:
        """An owner's samples, as positions in the pool; of a `subset` those that are drawn for the round.

        Raises:
            ValueError: the server asks for samples of a client, or somebody who may not for all.
        """
        whole = self._whole(owner, samples)
        if samples == "earlier":
            return np.sort(whole[:subset])
        if subset is None or subset >= len(whole):
            return whole
        return whole[draw_subset(len(whole), subset, self._seed, round)]

    def _whole(self, owner: int, samples: Samples) -> Indices:
        if samples == "none":
            return np.zeros(1, np.int64)
        if samples == "public":
            return np.arange(self.public_size)
        if samples == "pooled":
            if owner != SERVER or not self._pooled:
                raise ValueError("only the server of a method that is a `bound` has 'pooled' samples")
            return np.concatenate([self.partition.train[i] for i in self._pooled])
        if owner == SERVER:
            raise ValueError(f"the server has no {samples!r} samples: they are the clients' own")
        train = self.partition.train[owner]
        if samples == "train":
            return train
        if samples == "earlier":
            return self._earlier[owner]
        held = self._holdout[owner]
        if samples == "remainder":
            return train[~held]
        # A client with too few samples to hold any out is judged by its validation samples, where it has some.
        return train[held] if held.any() else self.partition.validation[owner]

    def _draw_holdout(self, seed: int, client: int, share: float) -> npt.NDArray[np.bool_]:
        n = len(self.partition.train[client])
        held = np.zeros(n, np.bool_)
        held[generator("holdout", seed, client).permutation(n)[: int(share * n)]] = True
        return held

    def n_earlier(self, client: int) -> int:
        """Number of the training samples that a client had before its data changed and has no longer."""
        return len(self._earlier[client])

    def _draw_earlier(self, client: int) -> Indices:
        """The client's samples of earlier stages, in random order; each keeps its rank among those that stay.

        The first k are then what reservoir sampling of size k has kept of them.
        """
        ranks: dict[int, float] = {}
        for number, stage in enumerate(self.stages[: self.stage]):
            draws = generator("earlier", self._seed, client, number).random(len(stage.train[client]))
            ranks = dict(zip(stage.train[client].tolist(), draws.tolist(), strict=True)) | ranks
        now = set(self.partition.train[client].tolist())
        return np.array(sorted(ranks.keys() - now, key=ranks.__getitem__), np.int64)
