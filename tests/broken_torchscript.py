"""TorchScript out of order in a whole process: how a machine or a version of torch without it looks to `bench`."""

import builtins
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def break_torchscript(how: str) -> None:
    """Let `from torch.jit import script` raise an error in modules of `bench` (`how` is `import`), or give them a
    function that does (`recording`). Torch itself keeps TorchScript, because its optimizers need it to be imported.
    """
    whole = builtins.__import__

    def fail(*_: object, **__: object) -> None:
        raise OSError("out of order")

    def broken(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        module = whole(name, globals, locals, fromlist, level)
        if name != "torch.jit" or not str((globals or {}).get("__name__")).startswith("bench."):
            return module
        if how == "import":
            raise ImportError("out of order")
        return SimpleNamespace(**vars(module) | {"script": fail})

    builtins.__import__ = broken


def break_in_commands(site: Path, how: str) -> None:
    """Break it in every process of Python that has this folder and the repository in its PYTHONPATH."""
    text = f"from tests.broken_torchscript import break_torchscript\n\nbreak_torchscript({how!r})\n"
    (site / "sitecustomize.py").write_text(text, encoding="utf-8")


def asked() -> str | None:
    """What `make without-torchscript` asks for in the environment."""
    how = os.environ.get("WITHOUT_TORCHSCRIPT")
    assert how in (None, "import", "recording"), how
    return how
