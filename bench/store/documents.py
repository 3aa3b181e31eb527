"""Schemas of a run's small files (docs/run-store.md): each file is checked as a whole before anything uses it.

They may come from somebody else, or be damaged; nothing in them is trusted to have a type, a length or a range.
"""

import base64
import binascii
import functools
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from bench.config.validation import problem_text
from bench.errors import UserError
from bench.places import refused
from bench.store import inside

CELL_ID = r"^[0-9a-f]{16}$"
"""What the name of a cell's folder is: an id, which cannot lead anywhere else."""

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}
"""Of the kinds of documents that were read so far."""

_Count = Annotated[int, Field(ge=0)]
_T = TypeVar("_T")


class _Document(BaseModel):
    """A file of which we need these keys; it may have more."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Entry(_Document):
    """A cell in `run.json`."""

    id: Annotated[str, Field(pattern=CELL_ID)]
    label: str
    settings: dict[str, Any]


class _Command(_Document):
    """A command of the run's history."""

    time: str
    command: str


class RunFile(_Document):
    """`run.json`."""

    grid: str
    cells: list[_Entry]
    published: str | None = None
    created: str = ""
    command: str = ""
    time: str = ""
    commit: str | None = None
    source: str = ""
    versions: dict[str, str] = {}
    machine: dict[str, Any] | str = {}
    history: list[_Command] = []
    notes: list[str] = []
    draws: list[list[_Count]] = []
    cases: list[str] = []
    reference: str = ""


class _Partition(_Document):
    """`partition.json`."""

    hash: str
    summary: str
    n_train: Annotated[list[_Count], Field(min_length=1)]
    n_test: list[_Count]
    n_validation: list[_Count] | None = None
    n_global_test: _Count = 0
    counts: list[Annotated[list[_Count], Field(min_length=1)]]
    round: _Count | None = None
    left_out: list[str] = []
    changes: list["_Partition"] = []

    @model_validator(mode="after")
    def _of_equal_length(self) -> "_Partition":
        lists: list[list[Any]] = [self.n_train, self.n_test, self.counts, self.n_validation or self.n_train]
        if len(set(map(len, lists))) > 1 or len(set(map(len, self.counts))) > 1:
            raise ValueError("its lists are not of equal length")
        return self


class _Tests(_Document):
    """`tests.json`."""

    clients: list[_Count]
    samples: list[_Count]
    local: str
    everywhere: Annotated[str, Field(alias="global")]
    round: _Count | None = None
    changes: list["_Tests"] = []

    @model_validator(mode="after")
    def _of_equal_length(self) -> "_Tests":
        _size(self.everywhere)
        if len(self.clients) != len(self.samples) or _size(self.local) != 4 * sum(self.samples):
            raise ValueError("its lists are not of equal length")
        return self


class _Shown(_Document):
    """The samples of one client in `samples.json`."""

    client: _Count
    labels: list[str]
    images: str


class _Samples(_Document):
    """`samples.json`."""

    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]
    clients: list[_Shown]

    @model_validator(mode="after")
    def _of_equal_length(self) -> "_Samples":
        channels, height, width = self.shape
        if any(_size(client.images) != len(client.labels) * channels * height * width for client in self.clients):
            raise ValueError("its images do not have its shape")
        return self


class _Relations(_Document):
    """`relations.json`."""

    clients: Annotated[list[_Count], Field(min_length=1)]
    n_train: list[_Count]
    matrices: dict[str, list[list[float]]]

    @model_validator(mode="after")
    def _square(self) -> "_Relations":
        count = len(self.clients)
        if any(len(matrix) != count or {*map(len, matrix)} != {count} for matrix in self.matrices.values()):
            raise ValueError("a matrix is not clients by clients")
        if len(self.n_train) != count:
            raise ValueError("its lists are not of equal length")
        return self


class _Statement(_Document):
    """The worth of one kind of noise, in `privacy.json`; no epsilon is an infinite one."""

    protects: Literal["client", "sample"]
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    adjacency: str
    sampling: str
    accountant: str
    unprotected: list[str]


class _Privacy(_Document):
    """`privacy.json`."""

    statements: Annotated[list[_Statement], Field(min_length=1)]


class _Timing(_Document):
    """`timing.json`."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    steps: dict[str, _Count] = {}


KINDS: dict[str, type[BaseModel]] = {
    "partition.json": _Partition,
    "tests.json": _Tests,
    "samples.json": _Samples,
    "relations.json": _Relations,
    "privacy.json": _Privacy,
    "timing.json": _Timing,
}


def read_json(path: Path) -> Any:
    """Read a JSON file; None where there is none.

    Raises:
        UserError: it is damaged, nested too deeply, or no file.
    """
    try:
        return json.loads(inside.read_bytes(path))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise UserError(refused(error)) from None
    except ValueError as error:
        raise _damaged(path, "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error) from None
    except RecursionError:
        raise UserError(f"{path} is damaged (nested too deeply): `bench` wrote no such file") from None


def id_of(folder: Path) -> str:
    """The id of the cell whose folder this is; empty where the folder's name is no id."""
    return folder.name if re.fullmatch(CELL_ID, folder.name) else ""


def read_run_file(run: Path) -> dict[str, Any] | None:
    """Read a run's `run.json`; None where there is none.

    Raises:
        UserError: the file is damaged.
    """
    file = run / "run.json"
    content: dict[str, Any] | None = read_json(file)
    if content is not None or file.exists():  # a file may hold `null`
        checked(RunFile, content, file)
    return content


def checked(kind: type[_T], content: Any, path: Path) -> _T:
    """Check a file's content against the kind of document that it should be, and return it.

    Raises:
        UserError: the content is another; the message names the first place that is wrong.
    """
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        document: _T = _ADAPTERS[kind].validate_python(content)
    except ValidationError as error:
        raise _damaged(path, first_error(error)) from None
    return document


def _damaged(path: Path, problem: object) -> UserError:
    return UserError(f"{path} is damaged ({problem}): delete it and give the command that wrote it again")


def first_error(error: ValidationError) -> str:
    """The first problem in one line: its place in the document, and what is wrong."""
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"][:-1] if problem["type"] == "missing" else problem["loc"]))
    return ": ".join(part for part in (place, problem_text(problem)) if part).replace("\n", " ")


def problem(path: Path) -> str:
    """Find the problem of a cell's file, one of those in `KINDS`: `missing`, `damaged`; empty where it is sound."""
    if not path.exists() and not path.is_symlink():
        return "missing"
    if not inside.is_file(path):
        return "not a file"
    stat = path.stat()
    return _known_problem(path, stat.st_size, stat.st_mtime_ns)


def read(folder: Path, name: str) -> Any:
    """Read a cell's document, one of `KINDS`; None where there is none or it is damaged."""
    return None if problem(folder / name) else read_json(folder / name)


@functools.cache
def _known_problem(path: Path, size: int, time: int) -> str:
    try:
        checked(KINDS[path.name], read_json(path), path)
    except (UserError, OSError):
        return "damaged"
    return ""


def _size(text: str) -> int:
    """Bytes of a text in base64."""
    try:
        return len(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
