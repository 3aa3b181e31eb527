"""`bench new-method`: writes a working method with comments that mark where one's own code goes, and its test."""

import importlib.util
import keyword
import os
import sys
from pathlib import Path
from string import Template

from bench.errors import UserError
from bench.places import check_output_folder
from bench.plugin import METHODS, SERVER_RULES

METHOD = Template('''\
"""$title: Authors year, "Title of the paper", Algorithm 1."""

from torch import Tensor

from bench.method import (
    METHODS,
    Batch,
    Client,
    Context,
    Forward,
    Hyperparameters,
    Method,
    Program,
    Range,
    State,
    Train,
    Upload,
    Values,
    cross_entropy,
    hp,
)


class Hyper(Hyperparameters):
    """Hyperparameters of $title: the paper's value, its limits, and the range that a sweep searches."""

    mu: float = hp(0.01, ge=0, search=Range(1e-4, 1, log=True))

    def degenerate(self) -> list[str]:
        """A sentence for every setting with which the method is another one."""
        return ["mu = 0: $title is FedAvg"] if self.mu == 0 else []


@METHODS.register("$name")
class $title(Method):
    """What it does, in one sentence: `bench methods` prints it."""

    Hyper = Hyper
    trains = "gm"  # the models it trains: "gm" the generic one, "pm" personalized ones (see `personal`), or "both"
    mean_of = ("model",)  # in the server's state: broadcast, and replaced by the weighted mean of the uploads

    # What a client keeps from round to round goes into `client.state`; fill it in `init_client(server, client)`.
    # A server that does more than average has its own `init`, `broadcast` and `aggregate`.

    def client_round(self, client: Client, down: State) -> Program:
        """One client's round, line by line as in the paper's algorithm box."""
        received = down["model"]
        # The engine trains. What is left out (epochs, batch size, optimizer) is the cell's.
        trained = yield Train({"w": received}, loss=local_loss, context={"center": received.weights})
        yield Upload({"model": trained["w"]})  # averaged with the client's number of samples as its weight
        return trained["w"]  # the metric `lm`: the client's model right after local training


def local_loss(model: Forward, values: Values, batch: Batch, ctx: Context) -> Tensor:
    """Cross-entropy + mu/2 ||w - center||^2. Tensors come as `ctx.name`, hyperparameters as `ctx.hp.name`."""
    away = values["w"].weights - ctx.center
    return cross_entropy(model, values, batch, ctx) + ctx.hp.mu / 2 * (away @ away)
''')

TEST = Template('''\
"""$title: the promises that the harness makes for all methods, and what the paper implies for this one."""

from pathlib import Path

from bench.conformance.suite import check, load
from bench.conformance.toy_problem import ROUNDS, advance, difference, toy_federation

FILE = Path(__file__).parent / "$path"
assert load(FILE) == ["$name"]


def test_keeps_the_promises() -> None:
    """What `bench check-method` looks at."""
    assert [finding for finding in check("$name") if not finding.passed] == []


def test_is_fedavg_without_its_term() -> None:
    """Bit for bit; and with it, it is not."""
    fedavg = advance(toy_federation("fedavg"), ROUNDS)
    assert difference(advance(toy_federation("$name", hp={"mu": 0.0}), ROUNDS), fedavg) == ""
    assert difference(advance(toy_federation("$name", hp={"mu": 0.5}), ROUNDS), fedavg) != ""
''')


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Write the files of a new method; returns the paths of the method and of its test.

    The test goes to the room of the same name in `tests/` beside the folder, if there is one; else beside the method.

    Raises:
        UserError: the name is taken or not a name, or a file is there already. Nothing is written then.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"{name!r} is not a Python name: a method is called like `fedprox` or `my_method`")
    module = name in sys.modules or ((spec := importlib.util.find_spec(name)) and spec.origin)
    if module or name in METHODS.names() or name in SERVER_RULES.names():
        raise UserError(f"there is a method or a module {name!r} already: choose another name")
    mirror = check_output_folder(folder).resolve().parent / "tests" / folder.resolve().name
    tests = mirror if mirror.is_dir() else folder
    method, test = folder / f"{name}.py", tests / f"test_{name}.py"
    for file in (method, test):
        if file.exists():
            raise UserError(f"{file} is there already: move it, or choose another name or --out")
    words = {
        "name": name,
        "title": "".join(word[:1].upper() + word[1:] for word in name.split("_")) or name,
        "path": Path(os.path.relpath(folder.resolve() / method.name, tests.resolve())).as_posix(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    method.write_text(METHOD.substitute(words), encoding="utf-8")
    test.write_text(TEST.substitute(words), encoding="utf-8")
    return method, test
