"""Exported models: a file that holds a model's computation, its normalisation and the names of its classes.

The computation is a list of torch's operations, which `torch.export` wrote down, beside the tensors that they work on.
So a file needs neither the code of the network nor that of the method, nothing in it is a program that could do
anything else, and `torch.load(file, weights_only=True)` reads it. The files of `torch.export.save` are others: reading
them unpickles.
"""

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bench.errors import UserError
from bench.operations import NotExportable, Recording, first_line, function_of, recorded, restored
from bench.places import check_file
from bench.plugin import DATASETS

if TYPE_CHECKING:
    import pandas as pd  # its import starts a thread, and workers are forked from a process that has this module

FORMAT = 1
_KEY = "pfleague_model"
_MEAN, _STD = "normalisation.mean", "normalisation.std"


class Predictions(NamedTuple):
    """Classes and probabilities that a model predicts for rows.

    Attributes:
        table: a row for each sample, with its `predicted` class and the `probability of` each class.
        notes: what was taken otherwise than it stands in the rows, a line each.
    """

    table: "pd.DataFrame"
    notes: list[str]


class ExportedModel:
    """A model from a file that `bench export` wrote.

    Attributes:
        site: the name of the client that it is of; None for the generic model.
        classes: names of the classes, or their numbers.
        cell: the cell that trained it: `id`, `name`, `method` and `round`.
        columns: the columns that it takes, of a model of tables; else empty.
        shape: of a sample.
        dtype: of its weights.
        needs_site: whether it takes samples as a site normalises them (the generic model under `normalise:
            per_client`), so that another model must say which.
    """

    def __init__(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.site: str | None = header["site"]
        self.classes: list[str] = header["classes"]
        self.cell: dict[str, Any] = header["cell"]
        self.shape: tuple[int, ...] = tuple(header["shape"])
        self.needs_site: bool = header["needs_site"]
        self.dtype: torch.dtype = getattr(torch, header["dtype"])
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
            at: for a model that `needs_site`, and for no other: that of the site, out of the same export.

        Raises:
            UserError: the samples have another shape or scale, or `at` is missing or another than that.
        """
        of_bytes, vocabulary = bool(self._header.get("bytes")), self._header.get("vocabulary") or 0
        check_samples(x, self.shape, of_bytes=of_bytes, vocabulary=vocabulary, of_table=self.table is not None)
        self._check_site(at)
        seen = self.normalised(x) if at is None else at.normalised(x)
        if not len(seen):
            return seen.new_zeros(0, len(self.classes))
        return self.network(seen)

    def _check_site(self, at: "ExportedModel | None") -> None:
        """Refuse what could normalise samples otherwise than in training, without a word."""
        if not self.needs_site:
            if at is not None:
                name = self.site or "all sites"
                raise UserError(f"the model of {name} takes rows as they are: give no file of a site beside it")
            return
        if at is None:
            raise UserError("the generic model takes rows as a site normalises them: give the file of the site, too")
        if at.site is None or _MEAN not in at._tensors:
            raise UserError("the second file has no normalisation: give the file of the site that the rows are from")
        if (at.cell["id"], at.shape, at.table) != (self.cell["id"], self.shape, self.table):
            raise UserError(
                f"the file of {at.site} is of another export (cell {at.cell['id']}) than the generic model (cell "
                f"{self.cell['id']}): give that of the site which `bench export` wrote beside it"
            )

    def normalised(self, x: Tensor) -> Tensor:
        """Raw samples as the network takes them; a missing number is the mean, which becomes 0."""
        if _MEAN not in self._tensors:
            return x.to(self.dtype) if x.is_floating_point() else x.long()
        mean, std = self._tensors[_MEAN], self._tensors[_STD]
        return ((x.to(mean.dtype) - mean) / std).nan_to_num(nan=0.0).to(self.dtype)

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
                    args, kwargs = restored(node["args"], values), node["kwargs"]
                    named = {key: restored(value, values) for key, value in kwargs.items()}
                    values[node["name"]] = function_of(node["op"])(*args, **named)
        logits: Tensor = restored(self._header["operations"][-1]["args"], values)[0]
        return logits.to(self.dtype)

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
            x, notes = DATASETS.offered("csv", "rows")(rows, self.table)
            return torch.from_numpy(x), notes
        if not isinstance(rows, str | Path):
            raise UserError("this model takes arrays, not tables: call it on raw samples, or give a file .npy or .npz")
        return torch.from_numpy(_array(Path(rows))), []


def check_samples(x: Tensor, shape: Sequence[int], *, of_bytes: bool, vocabulary: int, of_table: bool) -> None:
    """Refuse what are no raw samples of a model's data, as far as shape, type and values tell it.

    Args:
        x: samples `[n, ...]`.
        shape: of a sample.
        of_bytes, vocabulary: whether the data are bytes; the number of tokens, 0 where they are none.
        of_table: whether the data are a table's rows, in which numbers may be missing (nan).

    Raises:
        UserError: they are of another shape, type or scale, or hold numbers that are infinite or, elsewhere than in
            tables, missing.
    """
    if tuple(x.shape[1:]) != tuple(shape):
        raise UserError(f"samples of shape {list(x.shape[1:])}: the model takes {list(shape)}")
    if of_bytes and x.is_floating_point():
        raise UserError(f"samples of {x.dtype}: the model takes whole numbers from 0 to 255, as it was trained on")
    if vocabulary and x.is_floating_point():
        raise UserError(f"samples of {x.dtype}: the model takes tokens, which are whole numbers")
    if x.is_floating_point() and bool((strange := x.isinf() if of_table else ~x.isfinite()).any()):
        sample = int(strange.flatten(1).any(1).nonzero()[0])
        raise UserError(f"sample {sample} holds a number that is {'infinite' if of_table else 'not finite'}")
    if not x.numel() or not (of_bytes or vocabulary):
        return
    low, high = (int(end) for end in x.long().aminmax())
    if of_bytes and not 0 <= low <= high <= 255:
        raise UserError(f"samples from {low} to {high}: the model takes whole numbers from 0 to 255")
    if vocabulary and not 0 <= low <= high < vocabulary:
        raise UserError(f"tokens from {low} to {high}: the model has a vocabulary of {vocabulary}")


def _array(file: Path) -> Any:
    """An array of samples from a file."""
    check_file(file, "file of samples")
    try:
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            if "x" not in content.files:
                raise UserError(f"{file} has no array 'x'; it has {', '.join(content.files)}")
            content = content["x"]
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is no array of numbers (.npy, or .npz with an array 'x'): {error}") from None
    if content.dtype.kind not in "uif" or not content.ndim:
        raise UserError(f"{file} holds values of type {content.dtype}; samples are arrays of numbers [n, ...]")
    if content.dtype == np.uint8:
        return content
    if content.dtype.kind == "u" and content.size and content.max() > np.iinfo(np.int64).max:
        raise UserError(f"{file} holds {content.max()}; a model takes whole numbers below 2^63")
    with np.errstate(over="ignore"):  # becomes infinite, which the model refuses
        return content.astype(np.float32 if content.dtype.kind == "f" else np.int64)  # torch knows one order of bytes


def load_model(file: Path | str) -> ExportedModel:
    """Read a model that `bench export` wrote; nothing in the file is run that is not an operation of torch.

    Raises:
        UserError: it is no such file, it is damaged, or it asks for anything else.
    """
    check_file(Path(file), "file of a model", "`bench export RUN --out FOLDER` writes some, such as generic.pt")
    try:
        content = torch.load(Path(file), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for what is none of its files
        raise UserError(f"{file} is no exported model, or damaged ({first_line(error)})") from None
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
    return operation in ("input", "output") or (isinstance(operation, str) and function_of(operation) is not None)


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
    recordings: list[Recording] | None = None,
) -> ExportedModel:
    """Make the exported form of a network.

    Args:
        network: in `eval` mode.
        example: `[n, ...]` normalised samples, with which it is tried.
        normalisation: mean and standard deviation of raw samples, or nothing.
        bf16: whether products are in bfloat16.
        header: `site`, `classes`, `cell`, `shape`, `needs_site` and `table`, as of `ExportedModel`.
        recordings: of earlier networks; what this one computes is added to them if it is none of theirs.

    Raises:
        NotExportable: its computation cannot be written down, or gives other outputs then.
    """
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        expected = network(example)
    for earlier in recordings or []:
        if (recording := earlier.of(network)) is not None:
            model = _of_recording(recording, network, normalisation, bf16, header)
            if not far_apart(model.network(example), expected.to(model.dtype)):
                return model
    recording = recorded(network, example)
    model = _of_recording(recording, network, normalisation, bf16, header)
    if far_apart(model.network(example), expected.to(model.dtype)):
        raise NotExportable("its operations, run one after another, give other outputs than its network")
    if recordings is not None:
        recordings.append(recording)
    return model


def _of_recording(
    recording: Recording, network: nn.Module, normalisation: Sequence[Tensor], bf16: bool, header: Mapping[str, Any]
) -> ExportedModel:
    """The model of a recorded network."""
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    named = dict(zip((_MEAN, _STD), normalisation, strict=False))
    whole = {
        **header, "operations": recording.operations, "at_once": recording.at_once, "dtype": dtype, "bf16": bf16
    }  # fmt: skip
    return ExportedModel(json.loads(json.dumps(whole)), {**recording.tensors, **named})
