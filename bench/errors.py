"""Errors for the user, shown as one clear message without a traceback, with exit status 2."""

import ast
import contextlib
import difflib
import errno
import importlib
import io
import linecache
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

LISTED_NAMES = 12
"""Largest number of names that a message lists in place of a wrong one."""


class UserError(Exception):
    """An impossible request of the user; the message says what and where it is, and how to mend it."""


EXTRAS = {
    "dp_accounting": "privacy", "nvflare": "sites", "pyarrow": "parquet", "ray": "cluster", "safetensors": "networks",
    "timm": "networks", "tokenizers": "texts",
}  # fmt: skip
"""Extras of pFLeague by the package that they bring."""


def to_install(package: str) -> str:
    """Say how an optional package is installed: by pFLeague's extra where one brings it."""
    return f"pip install 'pfleague[{EXTRAS[package]}]'" if package in EXTRAS else f"pip install {package}"


def optional(module: str, need: str) -> Any:
    """Import a module of a package that only an extra of pFLeague brings.

    Args:
        need: what needs it, for the message.

    Raises:
        UserError: the package is not installed, or its import fails.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        reason = f"{need}: the package {package} is not installed here ({error}): {to_install(package)}"
        raise UserError(reason) from None


def did_you_mean(word: str, known: list[str]) -> str:
    """Return ` Did you mean 'x'?` for the most similar known word, or an empty string."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def in_words(error: BaseException, file: str | None) -> str:
    """Describe an error of a user's code with the last line of `file` in its traceback, if there is one.

    A name that is not there is followed by those that are: `AttributeError: there is no ctx.hp.lamb. Did you mean
    'lam'? ctx.hp has: lam (mine.py, line 30)`.
    """
    if isinstance(error, SyntaxError):  # its text names the line already; the traceback has no frame in the file
        return str(error)
    place = _place(error, file)
    if place is None or file is None:
        return f"{type(error).__name__}: {error}"
    line = f"{Path(file).name}, line {place.tb_lineno}"
    call = ": write `model(w, x)` with a model value, such as values['w']" if " Forward." in f" {error}" else ""
    return f"{type(error).__name__}: {_missing_name(error, place) or error}{call} ({line})"


def _place(error: BaseException, file: str | None) -> TracebackType | None:
    """Return where a traceback passes through `file` for the last time, or None."""
    last, at = None, error.__traceback__
    while at is not None:
        last = at if at.tb_frame.f_code.co_filename == file else last
        at = at.tb_next
    return last


def _missing_name(error: BaseException, place: TracebackType) -> str:
    """Say which attribute or key is not there, and which are; empty for other errors, and where the source is gone."""
    node = _failed_expression(place)
    if isinstance(error, AttributeError) and isinstance(node, ast.Attribute) and error.name == node.attr:
        word, value = node.attr, error.obj
    elif isinstance(error, KeyError) and isinstance(node, ast.Subscript) and [type(key) for key in error.args] == [str]:
        word, value = error.args[0], _value(node.value, place)
    else:
        return ""
    owner, names = ast.unparse(node.value), _names(value)
    if word in names or (value is None and isinstance(error, AttributeError)):  # it is from within, of another name
        return ""
    remedy = f": {_REMEDIES[owner]}" if owner in _REMEDIES else ""
    listed = f" {owner} has: {', '.join(names)}" if 0 < len(names) <= LISTED_NAMES else ""
    return f"there is no {ast.unparse(node)}{remedy}.{did_you_mean(word, names)}{listed}"


_REMEDIES = {
    "ctx": "give it to the loss by `context=` of `Train`",
    "ctx.hp": "declare it in the method's class `Hyper`",
    "down": "`mean_of` or `broadcast` says what a client receives",
    "client.state": "fill it in `init_client`",
    "server.state": "fill it in `init`",
}
"""What to do about a name that is not there, by what has no such name."""


def _failed_expression(place: TracebackType) -> ast.expr | None:
    """Return the expression whose evaluation failed; None where the source is gone."""
    code = place.tb_frame.f_code
    line, last, start, end = list(code.co_positions())[place.tb_lasti // 2]
    lines = linecache.getlines(code.co_filename, place.tb_frame.f_globals)[(line or 1) - 1 : last]
    text = b"".join(part.encode() for part in lines)
    after = len(lines[-1].encode()) - (end or 0) if lines else 0
    try:
        return ast.parse(text[start : len(text) - after], mode="eval").body
    except (SyntaxError, ValueError):  # the file was changed since, or holds a null byte
        return None


def _value(node: ast.expr, place: TracebackType) -> Any:
    """Evaluate an expression once more; None if that could call something of the user's, or fails."""
    kinds = ast.Name | ast.Attribute | ast.Subscript | ast.Constant | ast.expr_context
    if all(isinstance(part, kinds) for part in ast.walk(node)):
        with contextlib.suppress(Exception):  # a property may fail
            code = compile(ast.Expression(node), "<message>", "eval")
            return eval(code, place.tb_frame.f_globals, place.tb_frame.f_locals)
    return None


def _names(owner: Any) -> list[str]:
    """Return the names of a mapping's entries, of hyperparameters, or of an object's public attributes."""
    entries = owner if isinstance(owner, Mapping) else getattr(owner, "values", None)  # a `Message`'s, a `Trained`'s
    names: Iterable[Any] = dir(owner)
    if isinstance(entries, Mapping):
        names = entries
    elif fields := getattr(type(owner), "model_fields", None):
        names = fields
    return [name for name in names if isinstance(name, str) and not name.startswith("_")]


def let_output_degrade() -> None:
    """Print `?` for what the encoding of standard output lacks, as in the C locale; no output fails because of it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it was a file and is a pipe now, in which nobody can seek
                stream.reconfigure(errors="replace")


@contextlib.contextmanager
def refusing_exits() -> Iterator[None]:
    """Refuse an exit that a user's code asks for in the block: it decides no command's status.

    A `KeyboardInterrupt` is the user's Ctrl-C, but where signals raise none, as in workers and in a command's start.

    Raises:
        UserError: the code raised a `SystemExit`, as `sys.exit` does, or such an interrupt.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        signals = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
        if isinstance(error, KeyboardInterrupt) and any(map(callable, signals)):
            raise
        import sysconfig  # here, as every command reads this module

        library = sysconfig.get_paths()["stdlib"]  # where `argparse` ends a program
        frames = traceback.extract_tb(error.__traceback__)
        place = next((frame for frame in reversed(frames) if not frame.filename.startswith(library)), frames[-1])
        where = f"{place.filename}, line {place.lineno}: `{place.line}`"
        raise UserError(f"{where} ends the command ({type(error).__name__}): raise another error") from error


class Lost(Exception):
    """Loss of a helper process or device of a running cell; the cell can resume from its last checkpoint."""


_OPEN = (errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def shortage(error: BaseException) -> str:
    """One sentence of advice for an error that means that the disk, memory or open files ran out; empty for others."""
    text = str(error)
    writing = "PytorchStreamWriter failed writing" in text or "inline_container.cc" in text  # messages of torch.save
    if (isinstance(error, OSError) and error.errno in _FULL) or writing:
        place = f" while writing {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"the disk is full{place}: free some space and give the same command again, it goes on from there"
    if isinstance(error, OSError) and error.errno in _OPEN:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"more than {limit} open files: run fewer cells side by side (--jobs), or raise the limit (ulimit -n)"
    words = ("can't allocate memory", "out of memory", "CUFFT_ALLOC_FAILED")
    if isinstance(error, MemoryError) or any(word in text for word in words):
        details = text.strip().splitlines()[0][:200] if text else "no details"
        return f"out of memory: run fewer cells side by side (--jobs), or a smaller model or batch ({details})"
    return ""
