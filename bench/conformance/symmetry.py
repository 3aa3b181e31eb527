"""Properties that hold only if a method aggregates correctly: some changes of the problem must not change its result.

With full batches nothing is drawn at random, so the result must not depend on how clients are numbered, nor on whether
every sample is there once or twice (all weights n_i / n stay). Other methods set `symmetric = False`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from bench.conformance.checks import Case
from bench.conformance.toy_problem import ROUNDS, SIZES, problem
from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.params import Params
from bench.plugin import METHODS

TOLERANCE = 1e-8
FULL = {"participation": 1.0, "batch_size": 2 * sum(SIZES), "epochs": 2}
Models = dict[Any, Params]


def numbering(case: Case) -> str:
    """Check that the clients in reverse order give the same models."""
    order = list(range(len(SIZES)))[::-1]
    data, partition = problem()
    other = _models(case, data, _numbered(partition, order))
    renamed = {name if name == "generic" else order[name]: model for name, model in other.items()}
    return _difference(case, renamed, "with the clients in the opposite order")


def copies(case: Case) -> str:
    """Check that clients that have every training sample twice give the same models."""
    data, partition = problem()
    return _difference(case, _models(case, *_doubled(data, partition)), "with every training sample twice")


def _numbered(partition: Partition, order: list[int]) -> Partition:
    train, validation, test = (
        tuple(lists[i] for i in order) for lists in (partition.train, partition.validation, partition.test)
    )
    return Partition(train, validation, test, partition.global_test)


def _doubled(data: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    n = data.n_train
    twice = np.concatenate([np.arange(n), np.arange(len(data.y))])
    more = replace(data, x=data.x[twice], y=data.y[twice], n_train=2 * n)
    train = tuple(np.concatenate([indices, indices + n]) for indices in partition.train)
    return more, Partition(train, partition.validation, tuple(t + n for t in partition.test), partition.global_test + n)


def _difference(case: Case, models: Models, when: str) -> str:
    if not METHODS.get(case.name).symmetric:
        return ""
    for name, model in _models(case, *problem()).items():
        gap = float((model.weights - models[name].weights).abs().max())
        if not gap <= TOLERANCE:
            return f"{when}, the model of {name if name == 'generic' else f'client {name}'} differs by {gap:.2g}"
    return ""


def _models(case: Case, data: Dataset, partition: Partition) -> Models:
    """The generic and the personalized models after some rounds."""
    federation: Federation = case.federation(problem=(data, partition), **FULL)
    for _ in range(ROUNDS):
        federation.advance()
    evaluator, version = federation.evaluator, federation.version
    personal = evaluator.personal(version) if federation.method.trains != "gm" else {}
    generic = evaluator.generic(version, personal)
    return dict(personal) if generic is None else {"generic": generic, **personal}
