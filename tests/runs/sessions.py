"""A session of Python, as somebody would type it."""

import json
from pathlib import Path
from typing import Any

from tests.warm import Python

SESSION = """
import json, linecache, sys

def main(cells, names):
    for number, cell in enumerate(cells):
        name = f"<ipython-input-{number}>" if names else "<string>"
        if names:
            linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
            names["In"].append(cell)
        exec(compile(cell, name, "exec"), sys.modules["__main__"].__dict__)

cells = json.loads(sys.argv[1])
if sys.argv[2] == "notebook":
    In = [""]
    main(cells, globals())
else:
    main(cells, None)
"""


METHOD = """
from bench.method import METHODS, Method, Train, Upload, cross_entropy

def halfway(one, other):
    return (one.weights + other.weights) / 2

@METHODS.register("mine")
class Mine(Method):
    mean_of = ("model",)

    def client_round(self, client, down):
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"].with_weights(halfway(down["model"], trained["w"]))})
        return trained["w"]
"""


def session(python: Python, folder: Path, cells: list[str], kind: str = "notebook") -> list[Any]:
    """Run cells in a session; what they print, one JSON value a line."""
    done = python("-c", SESSION, json.dumps(["import json, bench.errors", *cells]), kind, folder=folder)
    return [json.loads(line) for line in done.stdout.splitlines()]
