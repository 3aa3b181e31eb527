"""`texts`: a column of texts as tokens, by a tokenizer file of Hugging Face's package `tokenizers`."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.data import Array, Dataset, Indices
from bench.errors import UserError, did_you_mean, optional
from bench.places import check_file
from bench.plugin import DATASETS
from datasets.columns import Columns
from datasets.hugging_face import frame_of, is_download, read_shards, shards
from datasets.table_rows import dataset_of
from datasets.tables import read_dataset

_REMEDY = "set the option `tokenizer` to a file tokenizer.json, as `save_pretrained` of a tokenizer writes it"
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|endoftext|>padding")
"""What tokenizers call the token for padding, where their file does not say how they pad."""
_AT_ONCE = 1000  # texts; limits the memory of the package's own form of them


@DATASETS.register("texts")
def load(
    *,
    data_root: Path,
    download: bool,
    path: str,
    text_column: str,
    label_column: str,
    tokenizer: str,
    length: PositiveInt = 64,
    padding: str = "",
    site_column: str = "",
    subject_column: str = "",
    part_column: str = "",
    name: str = "",
) -> Dataset:
    """A column of texts of a table (CSV or Parquet) as tokens `[rows, length]`, by a tokenizer file.

    Labels, sites, subjects, parts and tests are as of the data set `csv`; other columns are not used. A row without a
    text has the tokens of an empty one.

    Args:
        path: the table, a folder with one for each site, or a folder of Hugging Face with texts, as of the data set
            `hugging_face`.
        text_column: column of the texts.
        label_column, site_column, subject_column, part_column: as of `csv`.
        tokenizer: a file `tokenizer.json`, of which the vocabulary is.
        length: number of tokens of a text, including those that the tokenizer adds; the rest is cut off.
        padding: the token after the end of a text; that of the tokenizer's file if empty.

    Raises:
        UserError: the package tokenizers is not installed, a file is missing or damaged, the tokenizer has no token for
            padding or adds as many as `length`, or a column cannot be read so.
    """
    file = Path(tokenizer)
    reader = _tokenizer(file, padding, length)
    vocabulary = max(reader.get_vocab(with_added_tokens=True).values()) + 1
    cut: list[int] = []

    def tokens(features: Columns, training: Indices) -> tuple[Array, dict[str, Any]]:
        ((_, written),) = features.values()
        x, longer = _encoded(reader, ["" if text is None else text for text in written])
        cut.extend(longer)
        return x, {"vocabulary": vocabulary, "padding": reader.padding["pad_id"]}

    columns: dict[str, Any] = {
        "label": label_column, "site": site_column, "subject": subject_column, "part": part_column, "text": text_column,
    }  # fmt: skip
    folder = Path(path)
    if folder.is_dir() and is_download(folder):
        frame, part = frame_of(*read_shards(folder, shards(folder)[0], list(columns.values()), ())[:2])
        columns["part"] = part_column or part
        data = dataset_of(frame, source=path, name=name or folder.resolve().name, **columns, make=tokens)
    else:
        data = read_dataset(path, name, **columns, make=tokens)
    long = f"{data.name}: {len(cut)} of {len(data.y)} texts have more than {length} tokens and are cut; see `length`"
    content = hashlib.blake2b(data.checksum.encode() + file.read_bytes(), digest_size=16)
    return replace(data, checksum=content.hexdigest(), notes=(*data.notes, *([long] if cut else [])))


def _tokenizer(file: Path, padding: str, length: int) -> Any:
    """The tokenizer of a file, which cuts texts to `length` tokens and pads shorter ones at their end.

    Raises:
        UserError: as of `load`.
    """
    package = optional("tokenizers", f"tokenizer {file}")
    check_file(file, "tokenizer", _REMEDY)
    try:
        reader = package.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise UserError(f"{file} cannot be read as a tokenizer ({str(error).splitlines()[0]}); {_REMEDY}") from None
    known = reader.get_vocab(with_added_tokens=True)
    if padding and padding not in known:
        raise UserError(f"{file} has no token {padding!r} (option `padding`).{did_you_mean(padding, sorted(known))}")
    given = reader.padding or {}
    token = padding or given.get("pad_token") or next((name for name in _PADDING if name in known), None)
    if token is None:
        raise UserError(f"{file} has no token for padding: name one by the option `padding`")
    added = reader.num_special_tokens_to_add(is_pair=False)
    if added >= length:
        raise UserError(f"length = {length}: {file} adds {added} tokens to each text; set a larger `length`")
    reader.enable_truncation(length)
    reader.enable_padding(length=length, pad_token=token, pad_id=known.get(token, given.get("pad_id")))
    return reader


def _encoded(reader: Any, written: Sequence[str]) -> tuple[Array, list[int]]:
    """Tokens `[texts, length]` and the places of the texts that were cut."""
    # Threads of the package would not survive in the workers that are forked later, and it warns of that.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    x, cut = np.empty((len(written), reader.truncation["max_length"]), np.int32), []
    for start in range(0, len(written), _AT_ONCE):
        encoded = reader.encode_batch(list(written[start : start + _AT_ONCE]))
        x[start : start + len(encoded)] = [text.ids for text in encoded]
        cut += [start + place for place, text in enumerate(encoded) if text.overflowing]
    return x, cut
