"""Exported models: a file that holds a model's computation, its normalisation and the names of its classes.

The computation is a list of torch's operations, which `torch.export` wrote down, beside the tensors that they work on.
So a file needs neither the code of the network nor that of the method, nothing in it is a program that could do
anything else, and `torch.load(file, weights_only=True)` reads it. The files of `torch.export.save` are others: reading
them unpickles.
"""

import importlib
import json
import math
import operator
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd  # its import starts a thread, and workers are forked from a process that has this module

FORMAT = 1
_KEY = "pfleague_model"
_OPERATION = re.compile(r"aten\.\w+\.\w+")
_FILES = {"from_file"}
"""Torch's operations that read or write files."""
_SIZES = ("add", "sub", "mul", "floordiv", "mod", "truediv", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge")
"""Functions of Python's `operator` that the computation may use, on sizes and on lists of tensors."""
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}
"""Operations that compute nothing."""
_AT_ONCE = 500  # samples


class NotExportable(UserError):
    """Network whose computation cannot be written down as a list of torch's operations."""


class Predictions(NamedTuple):
    """Classes and probabilities that a model predicts for rows.

    Attributes:
        table: a row for each sample, with its `predicted` class and the `probability of` each class.
        notes: what was taken otherwise than it stands in the rows, a line each.
    """

    table: "pd.DataFrame"
    notes: list[str]


class Recording(NamedTuple):
    """A network's computation.

    Attributes:
        operations: in their order, in values that JSON can hold.
        tensors: on which they work, by name.
        at_once: how many samples the computation takes; 1 where it is written for a single one.
    """

    operations: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    at_once: int


def recorded(network: nn.Module, example: Tensor) -> Recording:
    """Write a network's computation down.

    Args:
        network: in `eval` mode.
        example: `[n, ...]` samples as the network takes them; the number of samples may differ later.

    Raises:
        NotExportable: it depends on values of samples, or on operations that are not torch's own.
    """
    try:
        return _recording(network, example, _AT_ONCE)
    except NotExportable:  # it may be that the number of samples is a plain number to it, as by `len(x)`
        return _recording(network, example[:1], 1)


def _recording(network: nn.Module, example: Tensor, at_once: int) -> Recording:
    program = _program(network, example, varying=at_once > 1)
    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    owned = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {name: held[owned[name]].detach().clone() for name in owned}
    nodes: list[dict[str, Any]] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in owned:
            nodes.append({"op": "input", "name": node.name})
        elif node.op == "call_function":
            if (name := _name(node.target)).split(".")[1] not in _CHECKS:
                nodes.append({"op": name, "name": node.name, "args": _plain(node.args), "kwargs": _plain(node.kwargs)})
        elif node.op == "output":
            nodes.append({"op": "output", "args": _plain(node.args[0])})
        elif node.op != "placeholder":
            raise NotExportable(f"its computation has a {node.op}, which is no operation")
    return Recording(nodes, tensors, at_once)


def _program(network: nn.Module, example: Tensor, *, varying: bool) -> torch.export.ExportedProgram:
    """The program that torch exports, for a varying number of samples or that of the example."""
    rows = {0: torch.export.Dim("rows")} if varying else None
    strict = any(isinstance(layer, nn.RNNBase) for layer in network.modules())  # follows tensors in lists, and is slow
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of would show in the outputs, which `exported` compares
        try:
            return torch.export.export(network, (example,), dynamic_shapes=(rows,), strict=strict)
        except Exception as error:  # of many kinds, for the network may be a user's
            raise NotExportable(f"its network is no fixed list of operations ({_line(error)})") from None


def _line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _name(target: Any) -> str:
    """The name of an operation, such as `aten.linear.default`.

    Raises:
        NotExportable: it is not torch's own.
    """
    name = str(target) if isinstance(target, torch._ops.OpOverload) else f"operator.{getattr(target, '__name__', '')}"
    if _function(name) is None:
        raise NotExportable(f"it uses the operation {target}, which is not torch's own")
    return name


def _function(name: str) -> Any:
    """The operation of a name; None for what the computation may not use."""
    room, _, rest = name.partition(".")
    if room == "operator":
        return getattr(operator, rest) if rest in _SIZES else None
    if not _OPERATION.fullmatch(name) or rest.split(".")[0] in _FILES:
        return None
    packet, overload = rest.split(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


def _plain(value: Any) -> Any:
    """Arguments of an operation in values that JSON can hold."""
    match value:
        case torch.fx.Node():
            return {"value": value.name}
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype() | torch.layout() | torch.memory_format():
            return {"torch": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": "cpu"}
        case list() | tuple():
            return [_plain(v) for v in value]
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
    raise NotExportable(f"an operation of its network takes a {type(value).__name__}")


def _restored(plain: Any, values: Mapping[str, Any]) -> Any:
    """Arguments of an operation from their JSON form, the inverse of `_plain`."""
    match plain:
        case {"value": str(name)}:
            return values[name]
        case {"torch": str(name)}:
            value = getattr(torch, name, None)
            if not isinstance(value, torch.dtype | torch.layout | torch.memory_format):
                raise ValueError(f"{name!r} is no type of torch")
            return value
        case {"device": _}:
            return torch.device("cpu")
        case list():
            return [_restored(v, values) for v in plain]
    return plain


class ExportedModel:
    """A model from a file that `bench export` wrote.

    Attributes:
        site: the name of the client that it is of; None for the generic model.
        classes: names of the classes, or their numbers.
        cell: the cell that trained it: `id`, `name`, `method` and `round`.
        columns: the columns that it takes, of a model of tables; else empty.
        shape: of a sample.
        needs_site: whether it takes samples as a site normalises them (the generic model under `normalise:
            per_client`), so that another model must say which.
    """

    def __init__(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.site: str | None = header["site"]
        self.classes: list[str] = header["classes"]
        self.cell: dict[str, Any] = header["cell"]
        self.shape: tuple[int, ...] = tuple(header["shape"])
        self.needs_site: bool = header["needs_site"]
        self.table: dict[str, Any] | None = header["table"]
        self.columns = [column["name"] for column in self.table["columns"]] if self.table else []
        self._header = dict(header)
        self._tensors = dict(tensors)

    def save(self, file: Path) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({_KEY: FORMAT, "header": json.dumps(self._header), "tensors": self._tensors}, file)

    @torch.no_grad()
    def __call__(self, x: Tensor, at: "ExportedModel | None" = None) -> Tensor:
        """Compute logits `[n, classes]` of raw samples `[n, ...]`; of a table nan stands where a number is missing.

        Args:
            x: as in the data set: bytes 0 .. 255 of images, arrays as in the file, token numbers.
            at: the model of the site whose normalisation a model takes that has none.

        Raises:
            UserError: the samples have another shape, or it is not said which site normalises them.
        """
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(f"samples of shape {list(x.shape[1:])}: the model takes {list(self.shape)}")
        if self.needs_site and at is None:
            raise UserError("the generic model takes rows as a site normalises them: give the file of the site, too")
        seen = self.normalised(x) if at is None else at.normalised(x)
        if not len(seen):
            return seen.new_zeros(0, len(self.classes))
        return self.network(seen)

    def normalised(self, x: Tensor) -> Tensor:
        """Raw samples as the network takes them; a missing number is the mean, which becomes 0."""
        dtype = getattr(torch, self._header["dtype"])
        if "normalisation.mean" not in self._tensors:
            return x.to(dtype) if x.is_floating_point() else x.long()
        mean, std = (self._tensors[f"normalisation.{name}"] for name in ("mean", "std"))
        return ((x.to(mean.dtype) - mean) / std).nan_to_num(nan=0.0).to(dtype)

    def network(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]` of normalised samples, of which there is at least one."""
        return torch.cat([self._run(part) for part in torch.split(x, self._header["at_once"])])

    def _run(self, x: Tensor) -> Tensor:
        """Run the operations one after another on some samples."""
        values: dict[str, Any] = dict(self._tensors)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._header["bf16"], cache_enabled=False):
            for node in self._header["operations"]:
                if node["op"] == "input":
                    values[node["name"]] = x
                elif node["op"] != "output":
                    args, kwargs = _restored(node["args"], values), node["kwargs"]
                    named = {key: _restored(value, values) for key, value in kwargs.items()}
                    values[node["name"]] = _function(node["op"])(*args, **named)
        logits: Tensor = _restored(self._header["operations"][-1]["args"], values)[0]
        return logits.to(getattr(torch, self._header["dtype"]))

    def predict(self, rows: "pd.DataFrame | Path | str", at: "ExportedModel | None" = None) -> Predictions:
        """Predict rows of a table, or samples in an array.

        Args:
            rows: a table, or a file of one (`.csv`, `.parquet`); for models of arrays a file `.npy`, or `.npz` with an
                array `x`. Columns may be in any order; those of labels and sites need not be there.
            at: as in calls.

        Raises:
            UserError: columns are missing, or a value cannot be read; the message names row and column.
        """
        import pandas as pd

        x, notes = self._read(rows)
        chances = self(x, at).double().softmax(1).numpy()
        table = pd.DataFrame({"predicted": [self.classes[k] for k in chances.argmax(1)]})
        for k, name in enumerate(self.classes):
            table[f"probability of {name}"] = chances[:, k]
        return Predictions(table, notes)

    def _read(self, rows: "pd.DataFrame | Path | str") -> tuple[Tensor, list[str]]:
        if self.table is not None:
            reading = importlib.import_module("datasets.new_rows")  # reached when used: bench imports no data set
            x, notes = reading.samples(rows, self.table)
            return torch.from_numpy(x), notes
        if not isinstance(rows, str | Path):
            raise UserError("this model takes arrays, not tables: call it on raw samples, or give a file .npy or .npz")
        return torch.from_numpy(_array(Path(rows))), []


def _array(file: Path) -> Any:
    """An array of samples from a file."""
    try:
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            if "x" not in content.files:
                raise UserError(f"{file} has no array 'x'; it has {', '.join(content.files)}")
            content = content["x"]
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is no array of numbers (.npy, or .npz with an array 'x'): {error}") from None
    if content.dtype.kind not in "uif" or not content.ndim:
        raise UserError(f"{file} holds values of type {content.dtype}; samples are arrays of numbers [n, ...]")
    if content.dtype.kind == "f" and not np.isfinite(content).all():
        raise UserError(
            f"{file}: sample {int(np.argwhere(~np.isfinite(content))[0][0])} holds a number that is not finite"
        )
    return content.astype(np.float32) if content.dtype.kind == "f" else content


def load_model(file: Path | str) -> ExportedModel:
    """Read a model that `bench export` wrote; nothing in the file is run that is not an operation of torch.

    Raises:
        UserError: it is no such file, it is damaged, or it asks for anything else.
    """
    try:
        content = torch.load(Path(file), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder; give the file of a model in it, such as generic.pt") from None
    except Exception as error:  # torch raises many kinds for what is none of its files
        raise UserError(f"{file} is no exported model, or damaged ({_line(error)})") from None
    if not isinstance(content, dict) or _KEY not in content:
        raise UserError(f"{file} is no exported model; `bench export RUN --out FOLDER` writes some")
    if content[_KEY] != FORMAT:
        raise UserError(f"{file} has format {content[_KEY]!r}; this version of pFLeague reads {FORMAT}")
    try:
        header, tensors = json.loads(content["header"]), content["tensors"]
        if strange := [node["op"] for node in header["operations"] if not _is_allowed(node["op"])]:
            raise UserError(f"{file} asks for {strange[0]!r}, which is no operation of torch: nothing of it was run")
        return ExportedModel(header, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged ({type(error).__name__}: {error}); export it again") from None


def _is_allowed(operation: Any) -> bool:
    return operation in ("input", "output") or (isinstance(operation, str) and _function(operation) is not None)


def far_apart(a: Tensor, b: Tensor) -> bool:
    """Whether outputs differ by more than rounding does."""
    exact = 1e-4 if a.dtype == torch.float32 else 1e-9
    scale = max(1.0, float(b.abs().max()) if b.numel() else 1.0)
    return bool(a.numel()) and not (float((a - b).abs().max()) <= exact * scale and math.isfinite(scale))


def exported(
    network: nn.Module,
    example: Tensor,
    *,
    normalisation: Sequence[Tensor],
    bf16: bool,
    header: Mapping[str, Any],
) -> ExportedModel:
    """Make the exported form of a network.

    Args:
        network: in `eval` mode.
        example: `[n, ...]` normalised samples, with which it is tried.
        normalisation: mean and standard deviation of raw samples, or nothing.
        bf16: whether products are in bfloat16.
        header: `site`, `classes`, `cell`, `shape`, `needs_site` and `table`, as of `ExportedModel`.

    Raises:
        NotExportable: its computation cannot be written down, or gives other outputs then.
    """
    operations, tensors, at_once = recorded(network, example)
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    named = dict(zip(("normalisation.mean", "normalisation.std"), normalisation, strict=False))
    whole = {**header, "operations": operations, "at_once": at_once, "dtype": dtype, "bf16": bf16}
    model = ExportedModel(json.loads(json.dumps(whole)), {**tensors, **named})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        expected = network(example)
    if far_apart(model.network(example), expected.to(getattr(torch, dtype))):
        raise NotExportable("its operations, run one after another, give other outputs than its network")
    return model
