"""A YAML reader that reports problems with their lines, and several problems at once.

Scalars follow the core schema of YAML 1.2, not PyYAML's 1.1: `1e-3` is a number, `no` and `2024-01-01` are text.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from bench.errors import UserError

Path = tuple[str | int, ...]  # the keys and list positions from the top of the document to a value

MAX_CHARACTERS = 200_000
MAX_VALUES = 20_000  # after expansion of aliases
MAX_DEPTH = 16
MAX_PROBLEMS = 10
_TAG = "tag:yaml.org,2002:"


@dataclass
class Document:
    """Plain values (dict, list, text, numbers, booleans, None) with the line of each, and the problems found in them.

    Attributes:
        data: the content.
        source: name of the file in messages.
        merged: places of entries that a reader leaves out, because they equal an earlier one.
    """

    data: Any
    source: str
    merged: set[Path] = field(default_factory=set)
    _places: dict[Path, tuple[int, str]] = field(default_factory=dict)
    _problems: dict[tuple[Path, str], tuple[int, str]] = field(default_factory=dict)
    _above: Path = ()

    def complain(self, path: Path, problem: str, line: int | None = None) -> None:
        """Note a problem of the value at `path`, or of a given `line`.

        Only the first problem of a value is kept, because later ones follow from it.
        """
        where = self._place(path) if line is None else (line, f"{self.source}:{line}")
        what = "" if path and line is None else problem
        self._problems.setdefault(((*self._above, *path), what), (where[0], f"{where[1]}: {problem}"))

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Turn a `UserError` inside the block into a problem of the value at `path`."""
        try:
            yield
        except UserError as error:
            self.complain(path, str(error))

    def check(self) -> None:
        """Raise an error if problems have been noted.

        Raises:
            UserError: one line per problem, `FILE:LINE: ...`, sorted by line; at most ten.
        """
        if not self._problems:
            return
        lines = [text for _, text in sorted(self._problems.values(), key=lambda problem: problem[0])]
        hidden = len(lines) - MAX_PROBLEMS
        more = [f"... and {hidden} more"] if hidden > 0 else []
        raise UserError("\n".join(lines[:MAX_PROBLEMS] + more))

    def put(self, key: str, value: Any, origin: str) -> None:
        """Set a key of the top mapping to a value from `origin`, such as an option, instead of a line of the file."""
        self.data[key] = value
        self._places = {path: place for path, place in self._places.items() if path[:1] != (key,)}
        self._places[(key,)] = (0, origin)

    def rename(self, old: str, new: str) -> None:
        """Give a key of the top mapping another name."""
        self.data[new] = self.data.pop(old)
        self._places[(new,)] = self._place((old,))

    def overridden(self, key: str) -> bool:
        """Whether a key of the top mapping was set by `put` and is not from the file."""
        return self._places.get((key,), (1, ""))[0] == 0

    def part(self, key: str) -> "Document":
        """The value under a key as a separate document; problems noted in it are also problems of this document."""
        places = {path[1:]: place for path, place in self._places.items() if path[:1] == (key,)}
        return Document(self.data[key], self.source, set(), places, self._problems, (*self._above, key))

    def _place(self, path: Path) -> tuple[int, str]:
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path, (1, f"{self.source}:1"))


def parse(text: str, source: str, *, keys: bool = False) -> Document:
    """Read one YAML document; the data of an empty one is None.

    Keys become text. Duplicate keys, keys that are neither text nor integers, and scalars that do not match their tag
    are noted as problems: by their lines, or by `keys` as in `grid['methods'][0]`.

    Raises:
        UserError: the text is not valid YAML, or it is too large or too deeply nested for a grid.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{source}: {len(text)} characters are too many for a grid; the limit is {MAX_CHARACTERS}")
    try:
        root = yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, [error.context, error.problem]))
        raise UserError(f"{source}:{mark.line + 1 if mark else 1}: not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{source}:{line}: not valid YAML: a control character") from None
    except (ValueError, OverflowError):  # raised by chr() inside PyYAML
        raise UserError(f"{source}: not valid YAML: an escape beyond Unicode") from None
    except RecursionError:
        raise UserError(f"{source}: nested deeper than {MAX_DEPTH} levels") from None
    document = Document(None, source)
    if root is not None:
        document.data = _Converter(document, keys).value(root, (), _line(root))
    return document


def of_values(values: Mapping[Any, Any], source: str) -> tuple[Document, str]:
    """Make a document of values from Python, and its text; problems name their place, e.g. `grid['methods'][0]`.

    Tuples become lists, paths text, and scalars of numpy numbers.

    Raises:
        UserError: a value that a file cannot hold, or too many or too deeply nested ones.
    """
    try:
        text = dump(to_jsonable_python(values, fallback=_plain))
    except (ValueError, RecursionError):
        raise UserError(f"{source}: nested deeper than {MAX_DEPTH} levels") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return parse(text, source, keys=True), text


def _plain(value: Any) -> Any:
    """A range as a list, and a scalar of numpy as a number."""
    if isinstance(value, range):
        return list(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise UserError(f"{str(value)[:40]} ({type(value).__name__}) is no value that a grid can hold")


def parse_assignment(text: str, example: str) -> tuple[str, Any]:
    """Key and YAML value of a `key=value` of `--set`; `example` is one for the message.

    Raises:
        UserError: it is not that, or the value is not valid YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", key):
        raise UserError(f"--set {text}: write key=value, for instance --set {example}")
    document = parse(value, f"--set {key}")
    document.check()
    return key, document.data


def dump(data: Any) -> str:
    """The text of plain values, from which `parse` reads them again."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  PyYAML's own name and type; filled below


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else, such as `1e-3` or `no`."""


# A site `007` is a text: with a leading zero it is no number here, where YAML 1.1 reads octal digits and 1.2 reads 7.
for _kind, _pattern, _first in [
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
]:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)
    _Dumper.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


class _Converter:
    """Turns nodes into plain values and notes their places."""

    def __init__(self, document: Document, keys: bool) -> None:
        self.document = document
        self.keys = keys
        self.seen = 0

    def value(self, node: yaml.Node, path: Path, line: int) -> Any:
        source = self.document.source
        place = source + "".join(f"[{step!r}]" for step in path) if self.keys else f"{source}:{line}"
        self.document._places[path] = (line, place)
        self.seen += 1
        if self.seen > MAX_VALUES or len(path) > MAX_DEPTH:  # aliases can make both grow without limit
            raise UserError(f"{place}: more values than a grid may have, or nested deeper than {MAX_DEPTH} levels")
        if node.tag == f"{_TAG}map" and isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if node.tag == f"{_TAG}seq" and isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i), _line(child)) for i, child in enumerate(node.value)]
        kind, text = node.tag.removeprefix(_TAG), _text(node)
        try:
            return _scalar(kind, text)
        except ValueError:
            self.document.complain(path, f"{text[:40]!r} is no value of the kind {kind!r} that a grid can hold")
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = _text(key_node), _line(key_node)
            if key_node.tag not in (f"{_TAG}str", f"{_TAG}int"):  # `3: 1`: 3 is a client's number
                self.document.complain(path, f"the key {key[:40]!r} is neither text nor a number of a client", line)
            elif key in result:
                self.document.complain(path, f"the key {key!r} is given twice", line)
            else:
                result[key] = self.value(value_node, (*path, key), line)
        return result


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"


def _scalar(kind: str, text: str) -> str | int | float | bool | None:
    """The value of a scalar.

    Raises:
        ValueError: it does not match its tag, or a grid cannot hold such a value.
    """
    match kind:
        case "null":
            return None
        case "str":
            text.encode()  # half a letter raises an error
            return text
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "int" if len(text) <= 32:
            return int(text, 0)
        case "float" if math.isfinite(number := float(text)):
            return number
    raise ValueError(kind)
