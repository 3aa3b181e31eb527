"""Answers to requests without training: predictions, scores of models, and sums of outputs by class."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.data import Indices
from bench.engine.anomalies import check_sums
from bench.engine.device_data import DeviceData
from bench.engine.predict import Task, accuracy_and_loss, class_sums
from bench.engine.programs import ProgramRun, Work
from bench.params import Params, Spec
from bench.requests import ClassStats, ClassSums, Evaluate, Predict

ForwardRequest = Predict | Evaluate | ClassStats


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
    pool, home = device_data.pool(request.samples), device_data.home
    sums = class_sums(pool, rows, positions, device_data.num_classes, request.moments)
    outer = None if sums.outer is None else sums.outer.to(home)
    check_sums(owner, sums)
    return ClassSums(sums.count.to(home), sums.sum.to(home), outer)


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
