"""Messages between the server and a site, as bytes: one safetensors file of tensors, and plain values under a schema.

Nothing is unpickled and no code is named. A message is refused unless each of its tensors stands once among its plain
values, has the shape and type that its place asks for, and is finite.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from bench.errors import optional
from bench.federation.snapshot import plain_spec, spec_of
from bench.params import Params, Spec, leaves

PROTOCOL = 2
_KEY = "pfleague"

Count = Annotated[int, Field(ge=0, le=2**40)]
Weight = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(max_length=200)]
EVENTS = 100_000
"""Most events of one message; those of a job have a bound of their own."""


class Refused(Exception):
    """A message that cannot be taken, with what is wrong with it, in one line: its sender may have written the text."""

    def __init__(self, text: str) -> None:
        line = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text[:500])
        super().__init__(line + " ..." * (len(text) > 500))


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Identity(_Part):
    """Facts that server and sites must agree on.

    Attributes:
        protocol: number of the form of messages.
        package: version of pFLeague.
        method: name of the method.
        code: digest of the method's file, and of the server rule's.
        settings: digest of the settings that decide a site's numbers, and of what the data are.
    """

    protocol: Count
    package: Name
    method: Name
    code: Name
    settings: Name

    def difference(self, other: "Identity") -> str:
        """Name the first thing that differs, with both values; empty if nothing does."""
        for name, value in self:
            if value != getattr(other, name):
                return f"{name} {value} here, {getattr(other, name)} there"
        return ""


class PlainEvent(_Part):
    """One event of a program: `work` is steps and samples, or `sent` the plain form of an upload's values."""

    work: tuple[Count, Count] | None = None
    sent: Any = None
    weight: Weight | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.work is None) == (self.sent is None) or (self.work is not None and self.weight is not None):
            raise PydanticCustomError("event", "should be work, or an upload that may have a weight")
        return self


class Envelope(_Part):
    """All of a message but its tensors.

    Attributes:
        identity: of the sender's program.
        kind: from the server `hello`, `round`, `reply`, `finish`; from a site `here`, `exchange`, `done`, `finished`,
            `refused`.
        site: the client's id.
        version: number of the server version that it is about.
        after: from the server, how many versions it had made when it last counted a round of this site (0: never).
        request: from a site, the digest of the message that it answers.
        values: plain form of what is downloaded, exchanged or replied.
        events: from a site, what its program has done since its last message.
        n_train: from a site that says `here` or `done`, its number of training samples.
        reason: why it was `refused`.
    """

    identity: Identity
    kind: Literal["hello", "round", "reply", "finish", "here", "exchange", "done", "finished", "refused"]
    site: Count
    version: Count = 0
    after: Count = 0
    request: Name = ""
    values: Any = None
    events: Annotated[list[PlainEvent], Field(max_length=EVENTS)] = []
    n_train: Count = 0
    reason: Annotated[str, Field(max_length=600)] = ""


class Content(NamedTuple):
    """A message that was read: its envelope and its tensors, by the names that stand in the plain values."""

    envelope: Envelope
    tensors: dict[str, Tensor]


def digest(body: bytes) -> str:
    """Hex digest of a message, by which an answer names it."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def write_file(tensors: Mapping[str, Tensor], text: str) -> bytes:
    """A safetensors file of tensors and one text, as bytes."""
    library = optional("safetensors.torch", "bench sites")
    alone = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    body: bytes = library.save(alone, {_KEY: text})
    return body


def read_file(body: bytes) -> tuple[dict[str, Tensor], str]:
    """The tensors and the text of `write_file`.

    Raises:
        Refused: it is truncated, or no such file.
    """
    library, problem = (optional(f"safetensors{part}", "bench sites") for part in (".torch", ""))
    try:
        tensors = library.load(body)
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        metadata = header.get("__metadata__", {})
    except (problem.SafetensorError, ValueError, RecursionError) as error:
        raise Refused(f"truncated, or no message: {error}") from None
    if set(metadata) != {_KEY}:
        raise Refused(f"no message of ours: its metadata are {sorted(metadata)}")
    return tensors, metadata[_KEY]


def same_bytes(first: Any, other: Any) -> bool:
    """Whether two nested values hold the same bytes under the same names."""
    in_first, in_other = dict(leaves(first)), dict(leaves(other))
    return in_first.keys() == in_other.keys() and all(_bytes(in_first[at]) == _bytes(in_other[at]) for at in in_first)


def _bytes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.detach().cpu().contiguous().numpy().tobytes()
    return value


def encode(envelope: Envelope, tensors: Mapping[str, Tensor]) -> bytes:
    """A message as bytes."""
    return write_file(tensors, json.dumps(envelope.model_dump(mode="json", exclude_defaults=True), allow_nan=False))


def decode(body: bytes, limit: int | None = None) -> Content:
    """Read a message.

    Args:
        limit: most bytes that it may have; None: any.

    Raises:
        Refused: it is too large, truncated, no message, or of another form.
    """
    if not isinstance(body, bytes):
        raise Refused(f"a message is bytes, and not {type(body).__name__}")
    if limit is not None and len(body) > limit:
        raise Refused(f"a message of {len(body)} bytes, where {limit} is the most")
    tensors, text = read_file(body)
    try:
        return Content(Envelope.model_validate_json(text), tensors)
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class Packed:
    """Turns values into their plain form; each occurrence of a tensor is stored, as the ledger counts it."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def pack(self, value: Any, at: str) -> Any:
        """The plain form of a value, whose tensors are stored under names that begin with `at`.

        Raises:
            TypeError: the value is of a kind that does not travel.
        """
        match value:
            case Params():
                spec = plain_spec(value.spec)
                if not isinstance(spec[0], str):
                    raise TypeError(f"{at} is a function of several models, which does not travel")
                buffers = self._store(value.buffers, f"{at}.buffers") if value.buffers.numel() else None
                return {"$params": [self._store(value.weights, f"{at}.weights"), buffers], "spec": spec}
            case Tensor():
                return {"$tensor": self._store(value, at)}
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                return [self.pack(child, _path(at, i)) for i, child in enumerate(value)]
            case Mapping():
                if not all(isinstance(key, str | int) for key in value):
                    raise TypeError(f"{at} has keys other than text and integers")
                return {"$dict": [[key, self.pack(child, _path(at, key))] for key, child in value.items()]}
        raise TypeError(f"{at} is of type {type(value).__name__}, which does not travel")

    def _store(self, tensor: Tensor, name: str) -> str:
        while name in self.tensors:
            name += "'"
        self.tensors[name] = tensor
        return name


def _path(at: str, key: object) -> str:
    return f"{at}.{key}" if at else str(key)


class Unpacked:
    """Turns plain forms back into values, each tensor once.

    Args:
        tensors: the message's tensors.
        specs: layouts of the cell's models by architecture.
        dtype: of the cell's models.
    """

    def __init__(self, tensors: Mapping[str, Tensor], specs: Mapping[str, Spec], dtype: torch.dtype) -> None:
        self._left = dict(tensors)
        self._specs = specs
        self._dtype = dtype

    def unpack(self, plain: Any, where: str = "values") -> Any:
        """The value of a plain form.

        Raises:
            Refused: a part of it has another shape or type, is not finite, or is unknown.
        """
        match plain:
            case {"$params": [str() as weights, str() | None as buffers], "spec": [str() as arch, names]}:
                spec = self._spec(arch, names, where)
                w = self._take(weights, where, (spec.d,), self._dtype)
                b = w[:0].clone() if buffers is None else self._take(buffers, where, (spec.b,), self._dtype)
                if b.shape != (spec.b,):
                    raise Refused(f"{where} has no running statistics, and its layout has {spec.b}")
                return Params(w, b, spec)
            case {"$tensor": str() as name}:
                return self._take(name, where)
            case {"$dict": [*items]} if all(isinstance(item, list) and len(item) == 2 for item in items):
                named = {self._key(key, where): self.unpack(child, f"{where}.{key}") for key, child in items}
                if len(named) < len(items):
                    raise Refused(f"{where} has a name twice")
                return named
            case list():
                return [self.unpack(child, f"{where}.{i}") for i, child in enumerate(plain)]
            case int() | float() if abs(plain) > 2**63 if isinstance(plain, int) else not math.isfinite(plain):
                raise Refused(f"{where} is no finite number of 64 bits")
            case None | bool() | int() | float() | str():
                return plain
        raise Refused(f"{where} has no known form")

    def end(self) -> None:
        """Refuse tensors that stand nowhere among the plain values.

        Raises:
            Refused: there are some.
        """
        if self._left:
            raise Refused(f"tensors beside the values: {', '.join(sorted(self._left))}")

    def _key(self, key: Any, where: str) -> str | int:
        if not isinstance(key, str | int):
            raise Refused(f"{where} has a key that is neither text nor a whole number")
        return key

    def _spec(self, arch: str, names: Any, where: str) -> Spec:
        if arch not in self._specs:
            raise Refused(f"{where} is of a model {arch}, and the cell has {', '.join(self._specs)}")
        known = {entry.name for entry in self._specs[arch].entries}
        if names is not None and not (isinstance(names, list) and set(map(str, names)) <= known):
            raise Refused(f"{where} names tensors that {arch} does not have")
        return spec_of([arch, names], self._specs)

    def _take(
        self, name: str, where: str, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        if name not in self._left:
            raise Refused(f"{where} has no tensor {name!r}, or has it twice")
        tensor = self._left.pop(name)
        if shape is not None and (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
            raise Refused(f"{name} is {tensor.dtype} {list(tensor.shape)} where {dtype} {list(shape)} is due")
        if not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{name} is not finite")
        return tensor
