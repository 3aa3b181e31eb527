"""A cell beside the same training by PFLlib's code: compared after each round and, where they part, step by step."""

import copy
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from bench.data import Floats
from bench.engine.anomalies import Watch
from bench.engine.prepare import Prepared
from bench.engine.step import Flat, has_batch_statistics
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.params import Spec, parts
from bench.peer import pfllib
from bench.plugin import METHODS, loaded_files
from bench.settings import Settings

ROUNDING = 1e-5
"""_Outputs that differ by less are equal: both codes compute in float64, and add in other orders."""

_Steps = dict[tuple[int, int], list[Any]]
_Outputs = dict[tuple[int, int], dict[str, Floats]]


@dataclass
class PeerRun:
    """The results of one code.

    Attributes:
        outputs: by round and client, the outputs of each tested model by its name, `[tests, classes]`.
        steps: by round and client, the trained values after each local step.
        selected: the clients of each round.
    """

    outputs: _Outputs = field(default_factory=dict)
    steps: _Steps = field(default_factory=dict)
    selected: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Likeness:
    """The differences between two codes.

    Attributes:
        differences: by round, the largest difference over clients and tests.
        models: by number of PFLlib's test in a round, the model here that is nearest (`pm` or `gm`).
        place: where they part, in words; empty if they are equal.
        equal_under: other single choices, which the method or the cell declares, under which they are equal.
    """

    differences: tuple[float, ...]
    models: tuple[str, ...]
    place: str = ""
    equal_under: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all outputs are equal up to rounding."""
        return not self.place


def beside_pfllib(
    settings: Settings, data_root: Path, checkout: Path, arguments: Sequence[str], classes: Sequence[Path] = ()
) -> Likeness:
    """Run a cell and PFLlib's `main.py`, compare them, and where they differ try what else the method declares.

    Args:
        settings: of the cell.
        data_root: the folder of data.
        checkout: PFLlib's repository.
        arguments: of `main.py`.
        classes: the files of a server and a client that take FedAvg's place.

    Raises:
        UserError: PFLlib's code ended with an error, or did not end.
    """
    start = time.monotonic()
    here = run_here(settings, data_root)
    limit = 300 + 30 * (time.monotonic() - start)  # PFLlib's code is some times slower, and its start takes a while
    there = run_there(settings, data_root, checkout, arguments, here.selected, classes, limit)
    likeness = compare(here, there)
    others = () if likeness.equal else alternatives(settings)
    equal = tuple(text for text, other in others if compare(run_here(other, data_root), there).equal)
    return dataclasses.replace(likeness, equal_under=equal)


def run_here(settings: Settings, data_root: Path) -> PeerRun:
    """Run a cell, and keep its outputs after each round and the values after each local step."""
    course, cell = PeerRun(), Federation.of(settings, data_root, executor="debug")
    cell.engine.watch = lambda request: _Kept(request, course.steps)
    if cell.clients.local_buffers:  # in PFLlib from the initial ones on, here from a client's first training on
        for i in cell.clients.ids:
            cell.clients.keep_buffers(cell.clients[i], cell.clients.down(i))
    for version in range(settings.rounds + 1):
        _keep_outputs(course.outputs, cell, version)
        if version < settings.rounds:
            cell.advance()
            course.selected.append(list(cell.server.selected))
    return course


def _keep_outputs(outputs: _Outputs, cell: Federation, version: int) -> None:
    evaluation = cell.outputs()
    for i, at in cell.evaluator.scorers.trained.own.items():
        models = {"pm": evaluation.personal.get(i), "gm": evaluation.generic}
        if cell.clients.local_buffers:  # PFLlib tests what a client has right after the broadcast
            models["gm with the client's buffers"] = cell.clients.down(i).get("model")
        tasks = {name: (model, at) for name, model in models.items() if model is not None}
        logits = cell.engine.outputs("train", list(tasks.values()), owners=[i] * len(tasks))
        outputs[version, i] = {name: values.double().numpy() for name, values in zip(tasks, logits, strict=True)}


class _Kept(Watch):
    """Keeps the trained values after each step, part by part."""

    def __init__(self, request: Prepared, steps: _Steps) -> None:
        super().__init__(request)
        self._steps, self._models = steps, dict(request.recipe.parts)

    def after_step(self, parts: Flat) -> None:
        address = self._request.address
        values = [
            (tensor.detach().reshape(-1).clone().double().numpy(), self._models[name.partition("/")[0]])
            for name, tensor in parts.items()
            if not name.endswith("/buffers")
        ]
        self._steps.setdefault((address.round, address.owner), []).append(values)


def run_there(
    settings: Settings,
    data_root: Path,
    checkout: Path,
    arguments: Sequence[str],
    selected: list[list[int]],
    classes: Sequence[Path] = (),
    limit: float | None = None,
) -> PeerRun:
    """Run PFLlib's `main.py` on the samples, batches, selections and initial values of a cell.

    Args:
        checkout: PFLlib's repository.
        arguments: of `main.py`.
        selected: the clients of each round.
        classes: the files of a server and a client that take FedAvg's place.
        limit: the seconds after which it is stopped.

    Raises:
        UserError: its code ended with an error, did not end, or did not test all clients.
    """
    cell, course = Federation.of(settings, data_root), PeerRun()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_outside(cell, selected, classes, folder)
        command = [sys.executable, "-m", "bench.peer.pfllib", str(checkout), str(folder), "--", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{checkout}: its main.py was stopped after {limit:.0f} s, many times what the cell took here; with "
                "these arguments a loop of it may not end"
            ) from None
        if (folder / pfllib.CAPTURED).exists():
            _read_captured(folder, course)
        tested = all((settings.rounds, i) in course.outputs for i in cell.clients.ids)
        if not tested:  # what fails after the last test (d832e76's FedAS does) changes nothing
            end = "ended with an error" if done.returncode else "tested not all clients after the last round"
            raise UserError(f"{checkout}: its main.py {end}\n{done.stderr[-1500:]}".rstrip())
    return course


def _read_captured(folder: Path, course: PeerRun) -> None:
    with np.load(folder / pfllib.CAPTURED) as captured:
        for name in captured.files:
            kind, round, client, number = name.split("/")
            at = int(round), int(client)
            if kind in ("output", "distance"):
                course.outputs.setdefault(at, {})[f"{kind} {number}"] = captured[name]
            else:
                course.steps.setdefault(at, []).append(captured[name])


def write_outside(cell: Federation, selected: list[list[int]], classes: Sequence[Path], folder: Path) -> None:
    """Write what comes from outside (`bench.peer.pfllib.OUTSIDE`)."""
    data, tests = cell.device_data, cell.evaluator.scorers.trained.own
    local, arrays = data.local, dict[str, Any]()
    for i in cell.clients.ids:
        train = data.partition.train[i]
        if cell.method.holdout:  # PFLlib holds out the last ones
            remainder = data.positions(i, "remainder")
            train = np.concatenate([remainder, train[~np.isin(train, remainder)]])
        for part, at in (("train", train), ("test", tests[i])):
            arrays |= {f"{part}/{i}/x": local.x[at].double().numpy(), f"{part}/{i}/y": local.y[at].numpy()}
    np.savez(folder / pfllib.DATA, **arrays)
    initial = cell.server.initial_model()
    module = copy.deepcopy(initial.spec.module)
    module.load_state_dict({name: t.clone() for name, t in initial.tensors().items()}, strict=False, assign=True)
    torch.save(module, folder / pfllib.NETWORK)
    torch.save({i: _further(cell, i) for i in cell.clients.ids}, folder / pfllib.FURTHER)
    plan = {
        "seed": cell.settings.seed,
        "rounds": cell.settings.rounds,
        "selected": selected,
        "batch_statistics": has_batch_statistics(initial.spec),
        "plugins": [str(path) for path in loaded_files()],
        "classes": [str(path.resolve()) for path in classes],
    }
    (folder / pfllib.PLAN).write_text(json.dumps(plan), encoding="utf-8")


def _further(cell: Federation, client: int) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """The initial values of what a client or the server has beside the cell's network.

    Returns:
        Those of other networks, such as a gate; and those of parts that do not start as the network does, such as a
        second head.
    """
    initial, others, heads = cell.server.initial_model(), [], []
    for values in parts([cell.server.state, cell.clients[client].state]):
        if isinstance(values, Tensor):
            others.append([values])
            continue
        tensors = values.tensors()
        weights = [tensors[entry.name].clone() for entry in values.spec.params]
        if (values.spec.whole or values.spec).arch != initial.spec.arch:
            others.append(weights)
        elif not all(torch.equal(tensor, initial.tensors()[name]) for name, tensor in tensors.items()):
            heads.append(weights)
    return others, heads


def compare(here: PeerRun, there: PeerRun) -> Likeness:
    """Compare the outputs after each round, and name the first round and local step in which they differ."""
    rounds = range(max(round for round, _ in there.outputs) + 1)
    tests = sorted({number for outputs in there.outputs.values() for number in outputs})
    far = {
        (number, model): [_farthest(here, there, round, number, model) for round in rounds]
        for number in tests
        for model in _models(here)
    }
    nearest = {number: min(_models(here), key=lambda model: far[number, model][::-1]) for number in tests}
    differences = tuple(max(far[number, nearest[number]][k] for number in tests) for k in range(len(rounds)))
    first = next((round for round, value in zip(rounds, differences, strict=True) if not value < ROUNDING), None)
    models = tuple(nearest[number] for number in tests)
    return Likeness(differences, models, "" if first is None else _place(here, there, first))


def _models(course: PeerRun) -> list[str]:
    return sorted(set.intersection(*(set(outputs) for outputs in course.outputs.values())))


def _farthest(here: PeerRun, there: PeerRun, round: int, number: str, model: str) -> float:
    """The largest difference over clients between a test's outputs and those of a model here; 0 without such a test."""
    pairs = [
        (here.outputs[at][model], outputs[number])
        for at, outputs in there.outputs.items()
        if at[0] == round and number in outputs and at in here.outputs
    ]
    if number.startswith("distance"):
        pairs = [(_preference(a), _preference(-b)) for a, b in pairs]
    return max((_difference(a, b) for a, b in pairs), default=0.0)


def _difference(a: Any, b: Any) -> float:
    """The largest difference of two arrays; infinite if their shapes differ or a value is no number."""
    if a.shape != b.shape:
        return np.inf
    with np.errstate(invalid="ignore"):  # equal infinities do not differ
        return float(np.nan_to_num(np.where(a == b, 0.0, np.abs(a - b)), nan=np.inf, posinf=np.inf).max())


def _preference(outputs: Floats) -> Any:
    """Outputs with mean 0 and variance 1 over the classes of a test sample, `[tests, classes]`.

    The distances |z - p_c|^2 / d there are a head 2 p_c^T z - |p_c|^2 here, which has another scale and no |z|^2.
    A class without a prototype, which is never predicted, has the value -1e6.
    """
    possible = np.ma.masked_less(outputs, -1e100)
    centered = possible - possible.mean(1, keepdims=True)
    return (centered / centered.std(1, keepdims=True)).filled(-1e6)


def _place(here: PeerRun, there: PeerRun, round: int) -> str:
    """The place, in words, where two codes part whose outputs differ after a round."""
    if round == 0:
        return "before the first round: initial values, or what is tested"
    for client in here.selected[round - 1]:
        at = round - 1, client
        for number, values in enumerate(_changed(here.steps.get(at, []))):
            if not any(_is_among(vector, spec, there.steps.get(at, [])) for vector, spec in values):
                return (
                    f"round {round}, client {client}, local step {number + 1} of {len(here.steps[at])} here "
                    f"({len(there.steps.get(at, []))} there)"
                )
        if len(here.steps.get(at, [])) != len(there.steps.get(at, [])):
            counts = f"{len(here.steps.get(at, []))} here and {len(there.steps.get(at, []))} there"
            return f"round {round}, client {client}: all steps here are among those there, but there are {counts}"
    return f"round {round}, after local training: what the server aggregates, what is sent, or what is tested"


def _changed(steps: list[Any]) -> Iterator[list[Any]]:
    """The parts that a step changed, step by step."""
    earlier: list[Any] = []
    for values in steps:
        known = {id(spec): vector for vector, spec in earlier}
        changed = [(v, spec) for v, spec in values if id(spec) not in known or not np.array_equal(known[id(spec)], v)]
        yield changed or values
        earlier = values


def _is_among(vector: Floats, spec: Any, steps: list[Floats]) -> bool:
    """Whether a step there left the whole of a part here, or its body or head, with these values."""
    slices = [vector]
    if isinstance(spec, Spec):
        head = sum(entry.size for entry in spec.params if entry.name.startswith("head."))
        slices += [vector[: len(vector) - head], vector[len(vector) - head :]]
    return any(
        len(values) == len(step) and len(step) and np.abs(values - step).max() < ROUNDING
        for values in slices
        for step in steps
    )


def alternatives(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """The cell under each other choice that its method or its BatchNorm declares, and the choice as it is written."""
    if settings.batchnorm == "aggregate":
        yield "batchnorm: local", settings.model_copy(update={"batchnorm": "local"})
    for name, declared in METHODS.get(settings.method).Hyper.model_fields.items():
        kind = declared.annotation
        choices = get_args(kind) if get_origin(kind) is Literal else (False, True) if kind is bool else ()
        for choice in choices:
            if settings.hp.get(name, declared.default) != choice:
                yield f"{name}: {choice}", settings.model_copy(update={"hp": settings.hp | {name: choice}})
