"""`bench new-method` and `bench check-method`: start a new method, and check that a method keeps the rules."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bench.conformance.suite import Finding


def new_method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new method's id, e.g. `my_method`.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the method's file.")] = Path("."),
) -> None:
    """Write the file of a new method, and a test of it."""
    from bench.conformance.scaffold import write

    method, test = write(name, out)
    print(f"{method}: the method, which is FedProx for now")
    print(f"{test}: its test; run it with `pytest {shlex.quote(str(test))}`")
    print(f"`bench check-method {shlex.quote(str(method))}` checks what every method must do")


def check_method(
    method: Annotated[
        str, typer.Argument(metavar="NAME_OR_FILE", help="A method's id, or the path of a .py file with methods.")
    ],
) -> None:
    """Check that a method keeps the promises of the harness. Exit status 1: it does not."""
    from bench.places import check_file
    from bench.plugin import METHODS

    if method.endswith(".py"):  # what is not there is refused before torch is imported
        check_file(Path(method))
    else:
        METHODS.declaration(method)
    from bench.conformance.suite import check, load

    names = load(Path(method)) if method.endswith(".py") else [method]
    passed = True
    for name in names:
        findings = check(name)
        _print(name, findings)
        passed = passed and all(finding.passed for finding in findings)
    if not passed:
        raise typer.Exit(1)


def _print(name: str, findings: "list[Finding]") -> None:
    width = max(len(finding.check) for finding in findings)
    print(name)
    for finding in findings:
        if finding.passed:
            print(f"  {finding.check:<{width}}  ok")
        else:
            print(f"  {finding.check:<{width}}  FAILED  {finding.problem}")
            print(f"  {'':<{width}}          {finding.remedy}")
