"""Outputs of model values on samples, running statistics frozen, in large batches.

They answer the requests without training: predictions, scores of models, and sums of outputs by class.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from bench.data import Indices
from bench.engine.anomalies import check_sums
from bench.engine.backends.backends import Recorded
from bench.engine.backends.loops import EvalLoop
from bench.engine.device import side_by_side
from bench.engine.device_data import GATHER, DeviceData, Pool, channels_last
from bench.engine.programs import ProgramRun, Work
from bench.engine.sizes import samples_at_once
from bench.engine.step import better_alone, is_convolutional, takes_channels_last
from bench.model_call import Arithmetic, Forward
from bench.params import Params, Spec
from bench.requests import ClassStats, ClassSums, Evaluate, Predict

Output = Literal["probabilities", "logits", "features", "directions"]
Task = tuple[Params, Indices]  # a model value and the positions of its samples in the pool
ForwardRequest = Predict | Evaluate | ClassStats

_SAMPLES_PER_LANE = (16, 32)
"""The two possible numbers of samples per call and lane; the one that needs less work is taken."""
_COST_OF_A_LANE = 16  # a call costs as much per lane as about so many samples
_FEW_SAMPLES = 128  # samples: models with more of them are run alone
_THREADS_PAY = 10**8
"""Samples x weights; with less work than this, threads gain nothing because they wait for each other's Python code."""


def outputs(
    pool: Pool,
    tasks: Sequence[Task],
    arithmetic: Arithmetic,
    *,
    output: Output = "logits",
    lanes: int = 0,
    samples_per_lane: int = 0,
    threads: int = 1,
    used: set[Recorded] | None = None,
) -> list[Tensor]:
    """Compute each task's outputs `[samples, ...]`, detached; small models on few samples run side by side.

    Args:
        arithmetic: the arithmetic of the cell's training.
        lanes: number of models side by side.
        samples_per_lane: the result of `choose_samples_per_lane` for these tasks and those of other devices together.
        used: a set to which recorded functions are added.
    """
    one_by_one = any(better_alone(w.spec) for w, _ in tasks)
    if not one_by_one and sum(w.spec.d * len(positions) for w, positions in tasks) < _THREADS_PAY:
        threads = 1
    few = [_is_few(task) and samples_per_lane > 0 for task in tasks]
    many = [task for task, is_few in zip(tasks, few, strict=True) if not is_few]
    small = [task for task, is_few in zip(tasks, few, strict=True) if is_few]
    if not small:
        return _alone(pool, tasks, output, arithmetic, threads)
    model = _recorded_model(small[0][0].spec, output, arithmetic, pool.dtype, pool.y.device)
    if used is not None:
        used.add(model)
    side = iter(_in_lanes(pool, small, model, lanes, samples_per_lane, threads))
    alone = iter(_alone(pool, many, output, arithmetic, threads))
    return [next(side if is_few else alone) for is_few in few]


def _is_few(task: Task) -> bool:
    return 0 < len(task[1]) <= _FEW_SAMPLES


def choose_samples_per_lane(tasks: Sequence[Task]) -> int:
    """Samples per call and lane where the small models of these tasks go side by side; 0: each model is run alone.

    Bytes depend on it, so it is decided for all tasks together, however many devices share them.
    """
    few = [task for task in tasks if _is_few(task)]
    if len(few) < 2 or any(better_alone(w.spec) for w, _ in tasks) or len({w.spec for w, _ in few}) > 1:
        return 0
    return _piece(tuple(len(positions) for _, positions in few))


@functools.lru_cache(64)  # asked for the same clients again and again
def _piece(lengths: tuple[int, ...]) -> int:
    n = np.array(lengths)
    return min(_SAMPLES_PER_LANE, key=lambda length: int((-(-n // length)).sum() * (length + _COST_OF_A_LANE)))


def cut(task: Task, parts: int, device: str) -> list[Task]:
    """Split a task into at most `parts` tasks for several devices, at places where a new call begins anyway."""
    w, positions = task
    size = samples_at_once(device, convolutional=is_convolutional(w.spec))
    calls = len(positions) // size  # the last part also has the samples of an incomplete call
    parts = max(1, min(parts, calls))
    marks = [calls * k // parts * size for k in range(parts)] + [len(positions)]
    return [(w, positions[a:b]) for a, b in itertools.pairwise(marks)]


def accuracy_and_loss(labels: Tensor, logits: Tensor, positions: Indices) -> tuple[Tensor, Tensor]:
    """Whether each sample is classified correctly, and its cross-entropy, `[samples]` each.

    Args:
        positions: `[samples]` positions in `labels`.
    """
    y = labels.index_select(0, torch.from_numpy(positions).to(labels.device))
    # A third of the time that torch's own cross-entropy takes for few classes.
    below = logits - logits.amax(1, keepdim=True)
    return logits.argmax(1) == y, below.exp().sum(1).log() - below.gather(1, y.unsqueeze(1)).squeeze(1)


def _run(w: Params, x: Tensor, output: Output, arithmetic: Arithmetic) -> Tensor:
    """Outputs in the dtype of the weights, so that whatever is computed from them is not in bfloat16."""
    model = Forward(arithmetic=arithmetic)
    if output in ("features", "directions"):
        z = model.features(w, x, stats="frozen")
        return torch.nn.functional.normalize(z, dim=1) if output == "directions" else z
    logits = model(w, x, stats="frozen")
    return logits.softmax(1) if output == "probabilities" else logits


def _on_device(pool: Pool, positions: Indices) -> Tensor:
    return torch.from_numpy(positions).to(pool.y.device)


def _alone(pool: Pool, tasks: Sequence[Task], output: Output, arithmetic: Arithmetic, threads: int) -> list[Tensor]:
    def run(w: Params, chunk: Tensor) -> Tensor:
        # No samples: the shape of one sample's output, as a GPU's BatchNorm refuses an empty batch.
        x, _ = pool.take(chunk if len(chunk) else chunk.new_zeros(1))
        with torch.no_grad():
            x = channels_last(x) if takes_channels_last(w.spec) else x
            return _run(w.to(x.device), x, output, arithmetic)[: len(chunk)]

    chunks = [_chunks(_on_device(pool, positions), w.spec) for w, positions in tasks]
    jobs = [functools.partial(run, w, chunk) for (w, _), parts in zip(tasks, chunks, strict=True) for chunk in parts]
    results = iter(side_by_side(threads, jobs, len(jobs)))
    return [torch.cat([next(results) for _ in parts]) for parts in chunks]


def _chunks(positions: Tensor, spec: Spec) -> tuple[Tensor, ...]:
    return torch.split(positions, samples_at_once(positions.device.type, convolutional=is_convolutional(spec)))


def _in_lanes(
    pool: Pool, tasks: Sequence[Task], model: Recorded, lanes: int, length: int, threads: int
) -> list[Tensor]:
    """Evaluate small models side by side.

    Each lane gets a fixed number of samples, padded where needed; outputs of padding are dropped.
    """
    lengths = tuple(len(positions) for _, positions in tasks)
    pieces, places, real = _pieces(lengths, lanes, length)
    models = [w for (w, _), n in zip(tasks, pieces, strict=True) for _ in range(n)]
    models += [models[0]] * (
        -len(models) % lanes
    )  # idle lanes compute, too: the bytes depend on how many lanes there are
    weights, buffers = [w.weights for w in models], [w.buffers for w in models]
    samples = _on_device(pool, np.concatenate([positions for _, positions in tasks])[places])
    examples = [flat[0].to(samples.device).expand(lanes, -1) for flat in (weights, buffers)]

    def run(first: int, x: Tensor) -> list[Tensor]:
        models_at = slice(first * lanes, (first + len(x)) * lanes)
        with torch.no_grad():
            vectors = [[t.to(x.device) for t in flat[models_at]] for flat in (weights, buffers)]
            return model.run([*examples, x[0]], len(x), *vectors, x)

    outputs_of_groups = []
    at_once = max(1, GATHER // (places[0].size * pool.x[0].numel() * pool.dtype.itemsize))
    for first in range(0, len(samples), at_once):
        # Gathered before threads go side by side: in Python they wait for each other at every operation of torch.
        x, _ = pool.take(samples[first : first + at_once])
        cuts = list(itertools.accumulate((len(part) for part in x.tensor_split(threads)), initial=0))
        jobs = [functools.partial(run, first + a, x[a:b]) for a, b in itertools.pairwise(cuts) if b > a]
        outputs_of_groups += side_by_side(threads, jobs, len(jobs))
    flat = torch.cat([out for outs in outputs_of_groups for out in outs]).flatten(0, 1)
    return list(torch.split(flat.index_select(0, _on_device(pool, real)), list(lengths)))


@functools.lru_cache(64)  # asked for the same clients again and again
def _pieces(lengths: tuple[int, ...], lanes: int, length: int) -> tuple[list[int], Indices, Indices]:
    """Cut lists of samples, which lie one after the other, into pieces for lanes.

    Returns:
        The number of pieces of each list; the place of each sample, `[groups, lanes, samples]`; and the positions of
        places that are no padding. A list's last sample fills up its last piece, and the first sample of all fills the
        lanes that are left.
    """
    n = np.array(lengths)
    pieces = -(-n // length)
    begins, size = np.cumsum(n) - n, pieces * length
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    places = np.repeat(begins, size) + np.minimum(within, np.repeat(n - 1, size))
    idle = np.zeros(-pieces.sum() % lanes * length, np.int64)
    real = np.flatnonzero(within < np.repeat(n, size))
    return pieces.tolist(), np.concatenate([places, idle]).reshape(-1, lanes, length), real


def _recorded_model(
    spec: Spec, output: Output, arithmetic: Arithmetic, dtype: torch.dtype, device: torch.device
) -> Recorded:
    """The recorded function for one network, output, arithmetic, dtype and device."""
    at = spec, output, arithmetic, dtype, device
    if at not in spec.held.recorded:
        spec.held.recorded[at] = _record(spec, output, arithmetic)
    recorded: Recorded = spec.held.recorded[at]
    return recorded


def _record(spec: Spec, output: Output, arithmetic: Arithmetic) -> Recorded:
    def model(weights: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        return _run(Params(weights, buffers, spec), x, output, arithmetic)

    return Recorded(lambda tensors: [vmap(model)(*tensors)], EvalLoop)


def answer_forwards(
    device_data: DeviceData,
    outputs: Callable[..., list[Tensor]],
    programs: Sequence[ProgramRun],
    requests: Mapping[int, ForwardRequest],
) -> tuple[dict[int, Any], dict[int, Work]]:
    """Answer requests, and measure the work that each took, by position of the program.

    Args:
        device_data: the samples.
        outputs: `bench.engine.engine.Engine.outputs`.
        programs: all programs.
        requests: the requests of some of them.
    """
    work: dict[int, Work] = {}
    by_kind: dict[tuple[Any, Any, Spec], list[tuple[int, int, Task]]] = defaultdict(list)
    for i, request in requests.items():
        subset = request.subset if isinstance(request, Predict) else None
        positions = device_data.positions(programs[i].owner, request.samples, subset, programs[i].address.round)
        models, output = _models_and_output(request)
        work[i] = Work(0, len(models) * len(positions))
        for k, w in enumerate(models):
            by_kind[request.samples, output, w.spec].append((i, k, (w, positions)))
    results: dict[int, dict[int, tuple[Tensor, Indices]]] = defaultdict(dict)
    for (samples, kind, _), tasks in by_kind.items():
        owners = [programs[i].owner for i, _, _ in tasks]
        rows = outputs(samples, [task for _, _, task in tasks], kind, owners)
        for (i, k, (_, positions)), row in zip(tasks, rows, strict=True):
            results[i][k] = (row, positions)
    answers: dict[int, Any] = {}
    to_score: dict[Any, dict[int, list[tuple[Tensor, Indices]]]] = defaultdict(dict)
    for i, request in requests.items():
        if isinstance(request, Predict):
            answers[i] = results[i][0][0].to(device_data.home)
        elif isinstance(request, ClassStats):
            answers[i] = _class_sums(device_data, programs[i].owner, request, *results[i][0])
        else:
            to_score[request.samples][i] = [results[i][k] for k in range(len(request.models))]
    for samples, scored in to_score.items():
        answers |= _scores(device_data, samples, scored)
    return answers, work


def _models_and_output(request: ForwardRequest) -> tuple[Sequence[Params], str]:
    """The models that a request evaluates, and which of their outputs it needs."""
    if isinstance(request, Evaluate):
        return request.models, "logits"
    return ([request.w], request.output) if isinstance(request, Predict) else ([request.model], request.of)


def _class_sums(
    device_data: DeviceData, owner: int, request: ClassStats, rows: Tensor, positions: Indices
) -> ClassSums:
    """Sums of `[samples, d]` outputs by class; of outer products, too, with 2 moments."""
    y, home = device_data.pool(request.samples).y, device_data.home
    of_class = y.index_select(0, torch.from_numpy(positions).to(y.device))
    member = (torch.arange(device_data.num_classes, device=y.device).unsqueeze(1) == of_class).to(rows.dtype)
    squares = request.moments == 2
    outer = torch.stack([(rows * members.unsqueeze(1)).T @ rows for members in member]) if squares else None
    sums = ClassSums(member.sum(1), member @ rows, outer)
    check_sums(owner, sums)
    return ClassSums(sums.count.to(home), sums.sum.to(home), None if outer is None else outer.to(home))


def _scores(
    device_data: DeviceData, samples: Any, models: dict[int, list[tuple[Tensor, Indices]]]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Losses and accuracies by program, from logits of its models; on the host, which waits for all at once."""
    rows = [row for results in models.values() for row in results]
    logits, positions = torch.cat([row for row, _ in rows]), np.concatenate([where for _, where in rows])
    hit, loss = accuracy_and_loss(device_data.pool(samples).y, logits, positions)
    lengths = [len(where) for _, where in rows]
    parts = torch.split(torch.stack([loss, hit.to(loss.dtype)]).cpu(), lengths, dim=1)
    # A client without samples of that kind scores a loss of 0 with every model.
    means = iter(part.sum(1) / max(1, n) for part, n in zip(parts, lengths, strict=True))
    scores = {i: torch.stack([next(means) for _ in results], dim=1) for i, results in models.items()}
    return {i: (losses, right) for i, (losses, right) in scores.items()}
