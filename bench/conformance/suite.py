"""The conformance suite: whether a method keeps the promises that the harness makes for all of them.

Each check runs the method on a small problem (`bench/conformance/toy_problem.py`) in two ways that must give the same
result, or inspects what the method did there.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.conformance.checks import CHECKS, Case
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
    file = file_of(METHODS.get(name))
    case = Case(name, hp or {})
    findings: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the engine's own warning of a fall-back is the finding of a check here
        for question in CHECKS:
            try:
                with refusing_exits():
                    problem = question.find(case)
            except Exception as error:  # a method may raise anything, and the other checks still have their say
                problem = in_words(error, file)
            findings.append(Finding(question.name, problem, question.remedy if problem else ""))
            if question.first and problem:
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
    files = {name: file_of(METHODS.get(name)) for name in METHODS.names()}
    return [name for name, known in files.items() if known and Path(known).resolve() == file.resolve()]
