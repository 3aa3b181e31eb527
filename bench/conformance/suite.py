"""The conformance suite: whether a method keeps the promises that the harness makes for all of them.

Each check runs the method on a small problem (`bench/conformance/toy_problem.py`) in two ways that must give the same
result, or inspects what the method did there.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.conformance import checks, symmetry
from bench.conformance.checks import Case
from bench.errors import UserError, in_words, refusing_exits
from bench.plugin import METHODS, file_of, load_file


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: its name.
        problem: what is wrong, and where; empty if nothing is.
        remedy: what to do.
    """

    check: str
    problem: str
    remedy: str

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def check(name: str, hp: dict[str, Any] | None = None) -> list[Finding]:
    """Check a registered method, with one finding per check.

    The first failed check that others depend on (`Check.first`) is the last one.

    Args:
        name: name of the method.
        hp: hyperparameters other than the defaults.

    Raises:
        UserError: the method is unknown.
    """
    METHODS.get(name)
    case = Case(name, hp or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the engine's own warning of a fall-back is the finding of a check here
        findings = []
        for question in CHECKS:
            findings.append(_finding(question, case))
            if question.first and not findings[-1].passed:
                break
    return findings


def load(file: Path) -> list[str]:
    """Import a Python file, unless it has been imported already, and return the names of the methods it registers.

    Raises:
        UserError: there is no such file, it cannot be imported, or it registers no method.
    """
    if not (names := _registered_by(file)):
        load_file(file)
        names = _registered_by(file)
    if not names:
        raise UserError(f"{file} registers no method: put @METHODS.register(NAME) before its class")
    return names


def _registered_by(file: Path) -> list[str]:
    modules = {name: sys.modules[METHODS.get(name).__module__] for name in METHODS.names()}
    return [n for n, m in modules.items() if m.__file__ and Path(m.__file__).resolve() == file.resolve()]


@dataclass(frozen=True)
class Check:
    """A question to a method.

    Attributes:
        find: the function that returns the problem, or an empty text.
        first: whether the check must pass before others make sense.
    """

    name: str
    find: Callable[[Case], str]
    remedy: str
    first: bool = False


def _finding(question: Check, case: Case) -> Finding:
    try:
        with refusing_exits():
            problem = question.find(case)
    except Exception as error:  # a method under test may raise anything, and the other checks still have their say
        problem = in_words(error, file_of(METHODS.get(case.name)))
    return Finding(question.name, problem, question.remedy if problem else "")


CHECKS = (
    Check("runs", checks.runs, "Mend this first; the other checks come after it.", first=True),
    Check(
        "deterministic",
        checks.deterministic,
        "Draw with `draws=` in a request or with `server.rng(purpose)`, never from a global generator, and keep "
        "nothing in module variables.",
        first=True,
    ),
    Check(
        "executors agree",
        checks.executors,
        "Keep Python branches, `.item()` and data-dependent shapes out of losses and steps, and reduce over samples "
        "with `batch.mean` only.",
    ),
    Check(
        "survives a checkpoint",
        checks.checkpoint,
        "Keep what later rounds need in `server.state` or `client.state`, as model values, tensors and plain values; "
        "not on the method's object, its class or its module.",
    ),
    Check(
        "evaluation leaves no trace",
        checks.evaluation,
        "Change no state in `generic`, `personal` and `broadcast`, and let `init_client` start from "
        "`server.initial_model`, not from the server's present state.",
    ),
    Check(
        "nothing changed in place",
        checks.in_place,
        "Make a new tensor (`a + b`, not `a += b`): others read the old one.",
    ),
    Check(
        "messages say all",
        checks.messages,
        "Let clients and server tell each other everything by broadcast, Upload and Exchange; nothing may pass by way "
        "of the method's object, its module, or the other side's state.",
    ),
    Check(
        "ledger adds up",
        checks.ledger,
        "Send model values, tensors, a few plain numbers and short texts, or lists and dicts of them; make a tensor of "
        "what is longer.",
    ),
    Check(
        "weights sum to 1",
        checks.weights,
        "Average with `mean(messages, name)`, or divide by the weights of the messages.",
    ),
    Check(
        "numbers of clients do not matter",
        symmetry.numbering,
        "Treat clients alike and address draws by `server.rng(purpose)`; say `symmetric = False` if the paper's method "
        "draws at random for a client.",
    ),
    Check(
        "copies of samples do not matter",
        symmetry.copies,
        "Weigh clients by n_i / n and samples by `batch.mean`; say `symmetric = False` if the paper's method counts "
        "samples absolutely.",
    ),
    Check(
        "losses hold no tensor",
        checks.losses,
        "Make it a function of the module that gets tensors by `context=` and hyperparameters as `ctx.hp`.",
    ),
    Check("hyperparameters", checks.hyperparameters, "Give each a default, and limits that its search range keeps."),
    Check("degenerate settings", checks.degenerate, "Return a sentence about it from `degenerate`."),
)
