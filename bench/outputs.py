"""Outputs of model values on samples, running statistics frozen, in large batches."""

import functools
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from bench.arena import GATHER, Pool, channels_last
from bench.data import Indices
from bench.forward import Forward
from bench.params import Params, Spec
from bench.play import Look
from bench.recording import Recorded
from bench.step import is_convolutional, takes_channels_last
from bench.threads import side_by_side

Output = Literal["probabilities", "logits", "features"]
Task = tuple[Params, Indices]  # a model value and the positions of its samples in the pool

_ABREAST = 32  # samples per call and lane of a cohort
_FEW = 128  # samples: models with more of them are run alone


def outputs(
    pool: Pool, tasks: Sequence[Task], *, output: Output = "logits", lanes: int = 0, threads: int = 1
) -> list[Tensor]:
    """For each task `[samples, ...]` outputs, detached; with lanes, small models on few samples go side by side."""
    few = [task for task in tasks if 0 < len(task[1]) <= _FEW] if lanes else []
    if len(few) < 2 or is_convolutional(few[0][0].spec) or len({w.spec for w, _ in few}) > 1:
        return _alone(pool, tasks, output, threads)
    many = [task for task in tasks if not 0 < len(task[1]) <= _FEW]
    abreast, alone = iter(_abreast(pool, few, output, lanes, threads)), iter(_alone(pool, many, output, threads))
    return [next(abreast if 0 < len(task[1]) <= _FEW else alone) for task in tasks]


def samples_at_once(device: str, *, convolutional: bool) -> int:
    """Samples per call of one model: of a CNN on a CPU so many that its maps stay in the cache."""
    return 100 if convolutional and device == "cpu" else 500


def accuracy_and_loss(pool: Pool, logits: Tensor, positions: Indices) -> tuple[Tensor, Tensor]:
    """Per sample whether it is right, and its cross-entropy, `[samples]` each."""
    y = pool.y[_on_device(pool, positions)]
    return logits.argmax(1) == y, torch.nn.functional.cross_entropy(logits, y, reduction="none")


def _run(w: Params, x: Tensor, output: Output) -> Tensor:
    model = Forward()
    if output == "features":
        return model.features(w, x, stats="frozen")
    logits = model(w, x, stats="frozen")
    return logits.softmax(1) if output == "probabilities" else logits


def _on_device(pool: Pool, positions: Indices) -> Tensor:
    return torch.from_numpy(positions).to(pool.y.device)


def _alone(pool: Pool, tasks: Sequence[Task], output: Output, threads: int) -> list[Tensor]:
    def run(w: Params, chunk: Tensor) -> Tensor:
        x, _ = pool.take(chunk)
        with torch.no_grad():
            return _run(w, channels_last(x) if takes_channels_last(w.spec) else x, output)

    # An empty list still runs once, on no samples, for the shape.
    chunks = [_chunks(_on_device(pool, positions), w.spec) for w, positions in tasks]
    jobs = [functools.partial(run, w, chunk) for (w, _), own in zip(tasks, chunks, strict=True) for chunk in own]
    done = iter(side_by_side(threads, jobs))
    return [torch.cat([next(done) for _ in own]) for own in chunks]


def _chunks(positions: Tensor, spec: Spec) -> tuple[Tensor, ...]:
    return torch.split(positions, samples_at_once(positions.device.type, convolutional=is_convolutional(spec)))


def _abreast(pool: Pool, tasks: Sequence[Task], output: Output, lanes: int, threads: int) -> list[Tensor]:
    """Pieces of a fixed number of samples, one per lane; what fills them up is read by nobody."""
    look = _look(tasks[0][0].spec, output, pool.dtype, pool.y.device)
    pieces = [_pieces(positions) for _, positions in tasks]
    models = [w for (w, _), own in zip(tasks, pieces, strict=True) for _ in own]
    idle = -len(models) % lanes
    models += [models[0]] * idle
    places = np.concatenate([*pieces, pieces[0][:1].repeat(idle, axis=0)]).reshape(-1, lanes, _ABREAST)
    samples = _on_device(pool, places)

    def run(first: int, last: int) -> list[Tensor]:
        seated = models[first * lanes : last * lanes]
        weights, buffers = [w.weights for w in seated], [w.buffers for w in seated]
        x, _ = pool.take(samples[first:last])
        like = [*(flat[0].new_empty(lanes, len(flat[0])) for flat in (weights, buffers)), x[0]]
        with torch.no_grad():
            return look.run(like, last - first, weights, buffers, x)

    group = lanes * _ABREAST * pool.x[0].numel() * pool.dtype.itemsize
    at_once = max(1, min(GATHER // group, -(-len(samples) // threads)))
    marks = [*range(0, len(samples), at_once), len(samples)]
    found = side_by_side(threads, [functools.partial(run, a, b) for a, b in itertools.pairwise(marks)])
    flat = torch.cat([out for outs in found for out in outs]).flatten(0, 1)
    per_task = torch.split(flat, [*(own.size for own in pieces), idle * _ABREAST])
    return [rows[: len(positions)] for rows, (_, positions) in zip(per_task, tasks, strict=False)]


def _pieces(positions: Indices) -> Indices:
    """`[pieces, samples]`: a list cut into pieces, the last one filled up with its last sample."""
    places = np.arange(-(-len(positions) // _ABREAST) * _ABREAST)
    return positions[np.minimum(places, len(positions) - 1)].reshape(-1, _ABREAST)


@functools.cache
def _look(spec: Spec, output: Output, dtype: torch.dtype, device: torch.device) -> Recorded:
    """One for each type and place of tensors: a recording is of these."""

    def one(weights: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        return _run(Params(weights, buffers, spec), x, output)

    return Recorded(lambda tensors: [vmap(one)(*tensors)], Look)
