"""Cells as in the grid `table1_fast`: rounds by method, way, precision and alpha, a compiled step, a resume."""

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from measure import Found, Rows, milliseconds, wait
from torch import Tensor

from bench.config.grid import load_grid
from bench.data import Dataset
from bench.engine.backends import backends
from bench.engine.backends.backends import Recorded
from bench.engine.backends.cuda_graph import Captured
from bench.engine.backends.loops import CohortLoop
from bench.engine.backends.recording import of_list, record
from bench.engine.device_data import SERVER
from bench.federation.cell_data import load_partition
from bench.federation.federation import Federation
from bench.settings import Settings
from bench.speed.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[3]
EAGER, RECORDED = "eager", "recorded"
AFTER = {EAGER: 10**9, RECORDED: 0}
"""Calls of a shape after which it is recorded: five in a cell on a GPU; here the round for warming up records all."""
SECONDS_OF_TESTS = 35


def federation(device: str, method: str, *, tiny: bool, **changes: Any) -> Federation:
    """A cell of table1_fast on noise of CIFAR-10's size; a tiny one has digits, four clients and a small network."""
    alpha = changes.pop("alpha", 1.0)
    cells = load_grid("table1_fast").cells
    cell = next(one for one in cells if (one.method, one.alpha, one.seed) == (method, alpha, 0))
    small: Found = {"model": "mlp", "clients": 4, "precision": "fp32"} if tiny else {}
    settings = cell.model_copy(update={**small, **changes})
    data = dataset(tiny)
    allowed = [one.name for one in backends.BACKENDS]
    how: Found = {"device": device, "executor": "cohort", "allow_fallback": allowed}
    return Federation(settings, dataset=data, partition=load_partition(settings, data), public=None, **how)


@functools.cache
def dataset(tiny: bool) -> Dataset:
    """Noise in the shape of the digits or of CIFAR-10."""
    name, train, test = ("digits", 200, 50) if tiny else ("resnet18", 10_000, 500)
    return replace(WORKLOADS[name], train=train, test=test).dataset()


def correctness(device: str, tiny: bool) -> Rows:
    """Twenty rounds on images with something to learn: what the device computes, and then what the CPU does in float32,
    which takes longer, with the differences of the weights."""
    found: dict[tuple[str, str, str], Federation] = {}

    def trained(device: str, method: str, executor: str, precision: str) -> Federation:
        net = {"model": "flower_cnn"} if method == "fedproto" else {"model": "cnn", "model_options": {"hidden": 32}}
        how = {"batch_size": 10, "lr": 0.02, "precision": precision, "alpha": 1.0, "eval_every": 20}
        settings = Settings(method=method, clients=4, **net, **how)  # type: ignore[arg-type]
        data = replace(WORKLOADS["mnist_mlp"], train=40 if tiny else 100, test=100).dataset()
        chosen: Found = {"device": device, "executor": executor}
        cell = Federation(settings, dataset=data, partition=load_partition(settings, data), public=None, **chosen)
        for _ in range(2 if tiny else 20):
            cell.advance()
        return cell

    def accuracies(cell: Federation) -> list[float]:
        metrics = cell.evaluate().metrics
        return [row["value"] for row in metrics if row["quantity"] == "accuracy" and row["split"] == "test"]

    def there(method: str, executor: str, precision: str) -> Found:
        cell = found[method, executor, precision] = trained(device, method, executor, precision)
        weights = [one for one in cell.state()[0].values() if one.is_floating_point()]
        finite = all(bool(one.isfinite().all()) for one in weights)
        return {"accuracies": accuracies(cell), "finite": finite, "notices": cell.warnings}

    def here(method: str, executor: str) -> Found:
        cell = trained("cpu", method, executor, "fp32")
        expected = cell.state()[0]
        size = sum(float(one.double().norm()) for one in expected.values())
        differences = {}
        for precision in precisions:
            if (method, executor, precision) in found:  # else its row failed or was left out
                state = found[method, executor, precision].state()[0]
                off = sum(float((state[name].cpu() - one).double().norm()) for name, one in expected.items())
                differences[precision] = off / max(size, 1e-9)
        return {"accuracies": accuracies(cell), "relative_differences": differences}

    precisions, executors = ("fp32",) if tiny else ("fp32", "bf16", "tf32"), ("cohort", "sequential")
    rows: Rows = {
        f"{method}, {executor}, {precision}": functools.partial(there, method, executor, precision)
        for precision in precisions
        for method in ("scd", "ditto", "fedavg", "fedproto")
        for executor in executors
    }
    return rows | {
        f"{method}, {executor}, on the CPU": functools.partial(here, method, executor)
        for method in ("fedavg", "ditto", "fedproto", "scd")
        for executor in executors
    }


class Call(NamedTuple):
    """A piece of a schedule that a cohort played: its lanes, the calls of its step, how it ran, and the seconds."""

    lanes: int
    calls: int
    recorded: bool
    seconds: float


@contextlib.contextmanager
def watched(device: str, *, timed: bool = False) -> Iterator[list[Call]]:
    """What cohorts play; if it is timed, each piece is waited for, which a cell does not do."""
    seen: list[Call] = []
    run = Recorded.run

    def noted(self: Recorded, like: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        start = time.perf_counter()
        found = run(self, like, calls, *args)
        if timed:
            wait(device)
        if self._make_loop is CohortLoop:
            made = self._recorded.get(tuple(t.shape for t in like))
            recorded = made is not None and made.backend is not None
            seen.append(Call(len(like[0]), calls, recorded, time.perf_counter() - start))
        return found

    with mock.patch.object(Recorded, "run", noted):
        yield seen


def rounds(device: str, tiny: bool, method: str, way: str, **changes: Any) -> Found:
    """A round for warming up, one whose time counts, and one whose calls are timed one by one."""
    with mock.patch.object(backends, "_RECORD_AFTER", AFTER[way]):
        cell = federation(device, method, tiny=tiny, **changes)
        begin = time.perf_counter()
        cell.advance()
        wait(device)
        engine, start = cell.engine, time.perf_counter()
        steps, seconds = engine.steps, engine.seconds
        with watched(device) as seen:
            cell.advance()
            wait(device)
        stop = time.perf_counter()
        steps, seconds = engine.steps - steps, engine.seconds - seconds
        with watched(device, timed=True) as timed:
            cell.advance()
    if not seen:
        raise ValueError(f"no cohort was run: {cell.warnings}")
    calls = sum(one.calls for one in seen)
    width = sum(one.lanes * one.calls for one in seen) / calls
    return {
        "steps": steps,
        "calls": calls,
        "recorded": sum(one.calls for one in seen if one.recorded),
        "eager": sum(one.calls for one in seen if not one.recorded),
        "lanes_per_call": width,
        "busy": steps / calls / width,
        "busy_of_all_lanes": steps / calls / engine.lanes,
        "lanes": engine.lanes,
        "ms_per_step_of_training": 1e3 * seconds / steps,
        "ms_per_step_of_the_round": 1e3 * (stop - start) / steps,
        "seconds_of_warmup": start - begin,
        "ms_per_call_by_lanes": _by_lanes(timed),
        "notices": cell.warnings,
    }


def _by_lanes(timed: list[Call]) -> dict[str, Found]:
    pieces = defaultdict(list)
    for one in timed:
        pieces[one.lanes].append(one)
    return {
        str(lanes): {"calls": (n := sum(p.calls for p in own)), "ms": 1e3 * sum(p.seconds for p in own) / n}
        for lanes, own in sorted(pieces.items())
    }


def steps(device: str, tiny: bool) -> Rows:
    """FedAvg and SCD at alpha 1, where few lanes are idle: by precision, recorded, and in the first one eager."""
    precisions = ("fp32",) if tiny else ("bf16", "fp32", "tf32")
    rows = [(m, p, RECORDED) for p in precisions for m in ("fedavg", "scd")]
    rows += [(m, precisions[0], EAGER) for m in ("fedavg", "scd")]
    return {
        f"{method}, {precision}, {way}": functools.partial(rounds, device, tiny, method, way, precision=precision)
        for method, precision, way in rows
    }


def unequal_rounds(device: str, tiny: bool) -> Rows:
    """FedAvg with unequal clients, whose calls have fewer and fewer lanes. If a call with few lanes takes about as long
    as one with many, several cells in one cohort would pay."""
    return {
        f"alpha {alpha:g}, {way}": functools.partial(rounds, device, tiny, "fedavg", way, alpha=alpha)
        for way in (RECORDED, EAGER)
        for alpha in (0.1, 0.5)
    }


class Caught(BaseException):
    """Carries a cohort's step and its arguments out of the engine; no error, so that the engine does not handle it."""


def first_step(
    device: str, tiny: bool, method: str, **changes: Any
) -> tuple[Callable[[list[Tensor]], list[Tensor]], list[Tensor]]:
    """The step of a method in all lanes, and tensors such as it gets."""

    def caught(self: Recorded, like: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        raise Caught(self._function, like)

    with mock.patch.object(Recorded, "run", caught):
        try:
            federation(device, method, tiny=tiny, **changes).advance()
        except Caught as found:
            return found.args[0], found.args[1]
    raise AssertionError("no step was run")


def inductor(device: str, tiny: bool) -> Rows:
    """Milliseconds of a step in all lanes: eager, recorded, as a CUDA graph, and its recording compiled by
    `torch.compile`."""

    def row(method: str) -> Found:
        step, like = first_step(device, tiny, method)
        graph, repeats = record(step, [t.clone() for t in like]), 1 if tiny else 10
        found: Found = {"lanes": len(like[0])}
        with torch.no_grad():
            found["ms_eager"] = milliseconds(lambda: step(like), device, repeats)
            found["ms_recorded"] = milliseconds(lambda: graph(*like), device, repeats)
            if device == "cuda":
                captured = Captured(of_list(record(step, [t.clone() for t in like])), like)
                found["ms_cuda_graph"] = milliseconds(lambda: captured(like), device, repeats)
            right, compiled, start = step(like), torch.compile(graph), time.perf_counter()
            try:
                outs = compiled(*like)
            except Exception as error:  # mostly there is no compiler
                return found | {"skipped": backends.one_line(error)}
            found["seconds_to_compile"] = time.perf_counter() - start
            found["ms_compiled"] = milliseconds(lambda: compiled(*like), device, repeats)
        differences = [float((a - b).abs().max()) for a, b in zip(outs, right, strict=True) if a.numel()]
        return found | {"largest_difference_from_eager": max(differences)}

    return {method: functools.partial(row, method) for method in ("fedavg", "scd")}


def resume(device: str, tiny: bool) -> Rows:
    """Whether a cell that was stopped after a round and goes on has the bytes of one that was not stopped: of the
    logits right after it, and of the state and the logits after another round."""

    def row(method: str) -> Found:
        first, second = (federation(device, method, tiny=tiny) for _ in range(2))
        first.advance()
        before = logits(first)
        tensors, plain = first.state()
        second.restore({name: tensor.cpu() for name, tensor in tensors.items()}, plain)
        found = {"logits": sum(t.numel() for t in before), "same_logits": same_bytes(before, logits(second))}
        for cell in (first, second):
            cell.advance()
        one, other = (cell.state()[0] for cell in (first, second))
        return {
            **found,
            "same_state_later": one.keys() == other.keys() and same_bytes([*one.values()], [other[n] for n in one]),
            "same_logits_later": same_bytes(logits(first), logits(second)),
        }

    return {method: functools.partial(row, method) for method in ("fedavg", "scd")}


def logits(cell: Federation) -> list[Tensor]:
    """Of the generic model on the common test set, and of the personalized ones on their clients' own."""
    partition = cell.engine.device_data.partition
    own = cell.evaluator.personal(cell.version) if cell.method.trains != "gm" else {}
    generic = cell.evaluator.generic(cell.version, own)
    tasks = [] if generic is None else [(generic, partition.global_test)]
    tasks += [(model, partition.test[i]) for i, model in own.items()]
    return cell.engine.outputs("train", tasks, owners=[SERVER] * len(tasks))


def same_bytes(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal bit by bit."""
    pairs = zip(found, expected, strict=True)
    return all(a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes() for a, b in pairs)


def device_tests(device: str, tiny: bool) -> Rows:
    """The core of `tests/engine/test_gpu.py`, each part in a process of its own; skipped where no tests are."""
    chosen = {
        "methods": "every_method and (fedavg or scd or fedrep)",
        "others": "agree or spectra or recorded or (same_path and resnet18)",
        "lanes": "lanes or kernel",
    }

    def row(expression: str) -> Found:
        tests = ROOT / "tests" / "engine" / "test_gpu.py"
        if not tests.exists():
            return {"skipped": "there are no tests beside this script"}
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "not slow", "-k", expression]
        how: Found = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": SECONDS_OF_TESTS}
        how["env"] = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # any plug-in may be installed here
        try:
            done = subprocess.run([*command, tests], **how)
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode().splitlines()
            return {"error": f"more than {SECONDS_OF_TESTS} s", "passed": sum(" PASSED" in line for line in said)}
        said = done.stdout.strip().splitlines() or [done.stderr]
        failed = [line for line in said if line.startswith(("FAILED", "ERROR"))]
        return {"exit": done.returncode, "says": said[-1].strip("= "), "failed": failed}

    return {name: functools.partial(row, expression) for name, expression in chosen.items()}
