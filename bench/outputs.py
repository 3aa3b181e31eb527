"""Outputs of model values on samples, running statistics frozen, in large batches."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from bench.arena import Pool, channels_last
from bench.forward import Forward
from bench.params import Params, Spec
from bench.recording import Mapped
from bench.step import is_convolutional, takes_channels_last
from bench.threads import workers

Output = Literal["probabilities", "logits", "features"]
Task = tuple[Params, Tensor]  # a model value and the positions of its samples in the pool

SAMPLES_ALONE = 500  # samples per call of one model
_ABREAST = 32  # samples per call and lane of a cohort
_FEW = 128  # samples: models with more of them are run alone


def outputs(
    pool: Pool, tasks: Sequence[Task], *, output: Output = "logits", lanes: int = 0, threads: int = 1
) -> list[Tensor]:
    """For each task `[samples, ...]` outputs, detached; with lanes, small models on few samples go side by side."""
    few = [task for task in tasks if len(task[1]) <= _FEW] if lanes else []
    if len(few) < 2 or is_convolutional(few[0][0].spec) or len({w.spec for w, _ in few}) > 1:
        return [_alone(pool, w, positions, output) for w, positions in tasks]
    abreast = iter(_abreast(pool, few, output, lanes, threads))
    return [next(abreast) if len(task[1]) <= _FEW else _alone(pool, *task, output) for task in tasks]


def accuracy_and_loss(pool: Pool, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Per sample whether it is right, and its cross-entropy, `[samples]` each."""
    y = pool.y[positions]
    return logits.argmax(1) == y, torch.nn.functional.cross_entropy(logits, y, reduction="none")


def _run(w: Params, x: Tensor, output: Output) -> Tensor:
    model = Forward()
    if output == "features":
        return model.features(w, x, stats="frozen")
    logits = model(w, x, stats="frozen")
    return logits.softmax(1) if output == "probabilities" else logits


def _alone(pool: Pool, w: Params, positions: Tensor, output: Output) -> Tensor:
    with torch.no_grad():
        # An empty list still runs once, on no samples, for the shape.
        chunks = torch.split(positions, SAMPLES_ALONE) if len(positions) else (positions,)
        place = channels_last if takes_channels_last(w.spec) else _unchanged
        return torch.cat([_run(w, place(pool.take(chunk)[0]), output) for chunk in chunks])


def _unchanged(x: Tensor) -> Tensor:
    return x


def _abreast(pool: Pool, tasks: Sequence[Task], output: Output, lanes: int, threads: int) -> list[Tensor]:
    """Chunks of a fixed number of samples, one per lane; the last ones are filled up with samples nobody reads."""
    mapped = _mapped(tasks[0][0].spec, output, pool.dtype, pool.y.device)
    pieces: list[tuple[int, Tensor]] = [
        (i, chunk) for i, (_, positions) in enumerate(tasks) for chunk in torch.split(positions, _ABREAST) if len(chunk)
    ]

    def run(start: int) -> Tensor:
        seated = pieces[start : start + lanes]
        full = [*seated, *([seated[0]] * (lanes - len(seated)))]
        positions = torch.stack([_filled(chunk) for _, chunk in full])
        weights = torch.stack([tasks[i][0].weights for i, _ in full])
        buffers = torch.stack([tasks[i][0].buffers for i, _ in full])
        with torch.no_grad():
            found: Tensor = mapped(weights, buffers, pool.take(positions)[0])
        return found

    starts = range(0, len(pieces), lanes)
    found: list[list[Tensor]] = [[] for _ in tasks]
    for start, out in zip(starts, workers(threads).map(run, starts) if threads > 1 else map(run, starts), strict=True):
        for (i, chunk), rows in zip(pieces[start : start + lanes], out, strict=False):
            found[i].append(rows[: len(chunk)])
    empty: Any = None
    for i, (w, positions) in enumerate(tasks):
        if not found[i]:
            empty = _alone(pool, w, positions[:0], output) if empty is None else empty
            found[i].append(empty)
    return [torch.cat(rows) for rows in found]


@functools.cache
def _mapped(spec: Spec, output: Output, dtype: torch.dtype, device: torch.device) -> Mapped:
    """One for each type and place of tensors: a recording is of these."""

    def one(weights: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        return _run(Params(weights, buffers, spec), x, output)

    return Mapped(one, (0, 0, 0))


def _filled(chunk: Tensor) -> Tensor:
    return torch.cat([chunk, chunk[:1].expand(_ABREAST - len(chunk))])
