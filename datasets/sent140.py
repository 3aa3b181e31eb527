"""`sent140`: tweets of positive or negative sentiment (Go et al. 2009), in the files that LEAF writes."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.leaf import read_leaf, two_classes
from datasets.words import FIRST, numbered, words_of

_TEXT = 4  # position of the text in a row: id, date, query, user, text


@DATASETS.register("sent140")
def load(
    *,
    data_root: Path,
    download: bool,
    vocabulary: Annotated[int, Field(gt=FIRST)] = 10_000,
    length: PositiveInt = 25,
) -> Dataset:
    """Sentiment140 as prepared by LEAF: tokens `[n, length]`, 2 classes; groups are the people.

    A token is a lower-case word (see `datasets.words`). LEAF's own model uses pretrained embeddings instead.

    Args:
        data_root: holds `sent140/data/train` and `sent140/data/test` with LEAF's JSON files.
        download: not used; LEAF makes the files.
        vocabulary: number of tokens, including those for padding and for unknown words.
        length: number of words kept of each text; the rest is cut off.

    Raises:
        UserError: files are missing, or not in LEAF's format.
    """
    texts, y, people, n_train = read_leaf("sent140", data_root, _texts)
    words = [words_of(text) for text in texts.tolist()]
    x = numbered(words[:n_train], words[n_train:], vocabulary, length)
    return assemble(
        "sent140", x, y, n_train, mean=None, std=None, classes=["bad", "good"], groups=people, vocabulary=vocabulary
    )


def _texts(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    return np.array([str(row[_TEXT]) for row in x], dtype=object), two_classes(x, y)
