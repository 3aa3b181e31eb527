"""The conformance suite passes every method of ours and finds what is wrong with broken ones."""

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench import plugin
from bench.conformance import checks
from bench.conformance.checks import CHECKS, Case
from bench.conformance.closures import held_tensors
from bench.conformance.suite import Finding, check, load
from bench.errors import UserError
from bench.plugin import METHODS
from tests.engine import problems as toys

Bench = Callable[..., "subprocess.CompletedProcess[str]"]

HERE = Path(__file__).parent

BROKEN = {
    "numpy_noise": {"deterministic"},
    "entropy": {"deterministic"},
    "seeding": {"deterministic"},
    "odd_rounds": {"survives a checkpoint"},
    "scored_memory": {"survives a checkpoint"},
    "hidden_model": {"survives a checkpoint", "messages say all"},
    "odd_state": {"runs"},
    "late_start": {"evaluation leaves no trace"},
    "in_place": {"nothing changed in place", "weights sum to 1"},
    "in_place_upload": {"nothing changed in place", "weights sum to 1"},
    "class_outbox": {"messages say all"},
    "outbox": {"messages say all"},
    "module_inbox": {"messages say all"},
    "reads_client": {"messages say all"},
    "writes_client": {"messages say all"},
    "array": {"ledger adds up"},
    "numbers": {"ledger adds up"},
    "text": {"ledger adds up"},
    "weights": {"weights sum to 1"},
    "closure": {"losses hold no tensor"},
    "bound": {"losses hold no tensor"},
    "new_loss": {"losses hold no tensor"},
    "new_partial": {"losses hold no tensor"},
    "branch": {"executors agree"},
    "no_number": {"runs"},
    "hidden_nan": {"executors agree"},
    "reduction": {"executors agree", "numbers of clients do not matter", "copies of samples do not matter"},
    "degenerate": {"degenerate settings"},
    "range": {"hyperparameters"},
    "default_value": {"hyperparameters"},
    "favourite": {"numbers of clients do not matter"},
    "counts": {"copies of samples do not matter"},
}

QUICK = {
    "array", "branch", "closure", "counts", "default_value", "degenerate", "favourite", "hidden_model", "in_place",
    "late_start", "no_number", "odd_rounds", "outbox", "range", "seeding", "weights",
}  # fmt: skip
"""Every check has one of them; `make test-all` tries all."""


@functools.cache
def problems(broken: str) -> dict[str, str]:
    """What the checks find about a broken method, by check."""
    return failed(check(f"broken_{broken}"))


def failed(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.problem for finding in findings if not finding.passed}


@pytest.fixture(scope="module")
def broken() -> Iterator[None]:
    """The broken methods, known while this module's tests run; a process may come back to them after others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METHODS, "_items", {**METHODS._items})
        patch.setattr(plugin, "_FILES", {**plugin._FILES})
        load(HERE / "broken_methods.py")
        yield


@pytest.mark.parametrize(
    ("name", "hp"),
    [
        *(pytest.param(name, toys.QUICK.get(name), marks=marks) for (name,), marks, _ in toys.EVERY_METHOD),
        pytest.param("fedrod", {"head": "hyper"}, marks=pytest.mark.long),
        pytest.param("floco_plus", {"tau": 1, "endpoints": 3}, marks=pytest.mark.long),
        pytest.param("superfed", {"start": 0, "mixing": "layer"}, marks=pytest.mark.long),
    ],
)
def test_ours_pass(name: str, hp: dict[str, Any] | None) -> None:
    findings = check(name, hp)
    assert failed(findings) == {}
    assert len(findings) == len(CHECKS)


def test_sound_is_what_the_broken_ones_are_but_for_one_thing(broken: None) -> None:
    assert problems("nothing") == {}


def test_scores_directly_after_a_restore_are_compared(broken: None) -> None:
    said = checks.checkpoint(Case("broken_scored_memory"))
    assert said.startswith("stopped and resumed after every round, the last one round 1, metrics['pm")


TEACHER = torch.ones(1)


def taught() -> Tensor:
    return TEACHER


def taught_indirectly() -> Tensor:
    return taught()


def taught_by_default(teacher: Tensor = TEACHER) -> Tensor:
    return teacher


class Taught:
    """A callable object."""

    def __init__(self) -> None:
        self.teacher = TEACHER

    def __call__(self) -> Tensor:
        return self.teacher


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (taught_indirectly, "module variable 'TEACHER'"),
        (taught_by_default, "the default of 'teacher'"),
        (functools.partial(print, TEACHER), "an argument of its `partial`"),
        (Taught(), "an attribute"),
    ],
)
def test_tensors_that_a_loss_holds_are_found(loss: Any, says: str) -> None:
    assert held_tensors(loss) == [says]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sound_pair", ""),
        ("broken_new_loss", "is made anew by every program"),
        ("broken_new_partial", "a `partial` of pull is made anew by every program"),
    ],
)
def test_losses_out_of_one_factory_are_fixed_if_the_rounds_ask_for_the_same_again(
    broken: None, name: str, says: str
) -> None:
    said = checks.losses(Case(name))
    assert said.endswith(says)
    assert bool(said) == bool(says)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"phase": "warm-up", "clients": [1, 2], "seen": None, "large": 2**63, "models": {7: 0.5}}, ""),
        ({"model": json.dumps([0.125] * 67)}, "469 plain numbers and letters"),
        ({"model": ["0.125"] * 67}, "335 plain numbers and letters"),
        ({"model": [None] * 67}, "67 plain numbers"),
        ({"model": {"a": [[0.125] * 16] * 2}}, "32 plain numbers"),
        ({"model": 10**3000}, "a whole number of 9966 bits under ['model']"),
        ({"model": [b"0.125"]}, "a bytes under ['model'][0]"),
        ({"model": 1j}, "a complex under ['model']"),
        ({"model": Decimal("0.125")}, "a Decimal under ['model']"),
        ({"model": {"0.125 " * 9: None}}, "the names ['model']['0.125 0.125 0.125"),
    ],
)
def test_what_a_message_may_hold_beside_tensors(message: dict[Any, Any], says: str) -> None:
    said = checks._uncounted(message)
    assert says in said
    assert bool(said) == bool(says)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in BROKEN]
)
def test_broken_ones_fail_by_the_check_meant_for_it(broken: None, name: str) -> None:
    assert problems(name).keys() == BROKEN[name]


def test_every_broken_method_is_tried_and_every_check_fails_for_one_but_that_of_nothing(broken: None) -> None:
    assert {f"broken_{name}" for name in BROKEN} | {"broken_nothing", "sound_pair"} == set(
        load(HERE / "broken_methods.py")
    )
    assert set().union(*(BROKEN[name] for name in QUICK)) == {one.name for one in CHECKS}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("outbox", "KeyError: 0 (broken_methods.py, line "),
        ("in_place", "changed in place: down['model'].weights, server.state['model'].weights"),
        ("array", "what a client uploads has a ndarray under ['model']"),
        pytest.param("numbers", "what a client downloads has 67 plain numbers", marks=pytest.mark.long),
        ("closure", "<lambda> holds a tensor: closed-over 'received'"),
        ("seeding", "the global random generator of torch moves"),
        ("degenerate", "with mu = 0, its generic model is that of FedAvg"),
        ("branch", "branching_loss cannot be mapped over clients"),
        ("no_number", "is not finite after training; first at step 1 of 2 (nan_loss): gradient of head.bias in 'w'"),
        pytest.param(
            "hidden_nan",
            "was not finite at step 1 of 2 (hiding_step): gradient of head.bias in 'w'",
            marks=pytest.mark.long,
        ),
    ],
)
def test_says_what_and_where(broken: None, name: str, says: str) -> None:
    assert says in next(iter(problems(name).values()))


@pytest.mark.parametrize("column", ["up", "down_receivers"])
def test_a_ledger_that_does_not_add_up_is_found(column: str) -> None:
    case = Case("fedavg")
    assert case.expected
    assert checks.ledger(case) == ""
    case.reference.ledger[1][column] += 8
    assert checks.ledger(case).startswith(f"the ledger's column {column!r} comes to ")


def test_leaves_the_global_generators_as_they_were(broken: None) -> None:
    before = torch.get_rng_state()
    check("broken_seeding")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file"),
        ("", "registers no method"),
        ("def f(:\n", "cannot be imported"),
        ("import no_such_module_at_all\n", "cannot be imported"),
        ("from bench.method import METHODS, Method\n@METHODS.register('fedavg')\nclass A(Method): ...", "twice"),
    ],
)
def test_files_without_methods(tmp_path: Path, content: str | None, says: str) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=says):
        load(file)


def test_a_file_of_ours_is_not_imported_again() -> None:
    spec = importlib.util.find_spec("methods.lga")
    assert spec is not None
    assert spec.origin is not None
    names = ["fedasync_mix", "fedavg_async", "fedavg_sync", "lga", "perfedavg_async", "plga"]
    assert load(Path(spec.origin)) == names


# -- the commands -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_scaffold_passes_its_own_test_and_the_check(
    bench: Bench, tmp_path: Path, environment: dict[str, str]
) -> None:
    written = bench("new-method", "my_method", "--out", "fresh").stdout
    assert "my_method.py" in written
    assert "test_my_method.py" in written
    found = bench("check-method", "fresh/my_method.py").stdout.splitlines()
    assert found[0] == "my_method"
    assert [line.split()[-1] for line in found[1:]] == ["ok"] * len(CHECKS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "fresh"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_scaffold_in_a_room_with_tests(bench_here: Bench, tmp_path: Path) -> None:
    """The test goes to the mirror room, and finds the method from there."""
    (tmp_path / "tests" / "methods").mkdir(parents=True)
    bench_here("new-method", "my_other_method", "--out", tmp_path / "methods")
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.py")} == {
        "methods/my_other_method.py", "tests/methods/test_my_other_method.py",
    }  # fmt: skip
    assert '/ "../../methods/my_other_method.py"' in (tmp_path / "tests/methods/test_my_other_method.py").read_text()


@pytest.mark.parametrize(
    "name", ["fedavg", "fedbuff", "two words", "1st", "class", "../up", "taken", "tested", "bench", "numpy", "sys"]
)
def test_refuses_a_name_and_writes_nothing(bench_here: Bench, tmp_path: Path, name: str) -> None:
    (tmp_path / "taken.py").touch()
    (tmp_path / "test_tested.py").touch()
    before = sorted(tmp_path.rglob("*"))
    refused = bench_here("new-method", name, "--out", tmp_path, code=2)
    assert refused.stderr.startswith("bench: ")
    assert "Traceback" not in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_exit_statuses(broken: None, bench_here: Bench) -> None:
    """1 for a failed check, 2 for an unknown method."""
    assert "Did you mean 'fedprox'?" in bench_here("check-method", "fedprx", code=2).stderr
    found = bench_here("check-method", "broken_weights", code=1).stdout
    assert "weights sum to 1                  FAILED  although all clients send back what they received" in found
    assert "Average with `mean(messages, name)`" in found
