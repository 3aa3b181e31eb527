"""`ag_news`: titles and first lines of news articles in four classes, as published by Zhang et al. 2015
(arXiv:1509.01626).
"""

import csv
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.published import reading
from datasets.words import FIRST, numbered, words_of

_CLASSES = ["world", "sports", "business", "sci/tech"]


@DATASETS.register("ag_news")
def load(
    *,
    data_root: Path,
    download: bool,
    vocabulary: Annotated[int, Field(gt=FIRST)] = 20_000,
    length: PositiveInt = 64,
) -> Dataset:
    """AG News: tokens `[127600, length]`, 120,000 of them for training, 4 classes.

    A token is a lower-case word (see `datasets.words`).

    Args:
        data_root: holds `ag_news_csv/train.csv` and `test.csv`.
        vocabulary: number of tokens, including those for padding and for unknown words.
        length: number of words kept of each text; the rest is cut off.
    """
    train, test = (_rows(data_root / "ag_news_csv" / f"{part}.csv") for part in ("train", "test"))
    x = numbered([words for words, _ in train], [words for words, _ in test], vocabulary, length)
    y: Array = np.array([label for _, label in [*train, *test]])
    return assemble("ag_news", x, y, len(train), classes=_CLASSES, vocabulary=vocabulary)


def _rows(file: Path) -> list[tuple[list[str], int]]:
    """Words and label of each text; a line holds the class (from 1), the title and the description."""
    with reading("ag_news", file, "put the CSV files there, or set `--data-root`"):
        with file.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.reader(stream))
        for at, line in enumerate(lines, start=1):
            if len(line) != 3 or line[0] not in ("1", "2", "3", "4"):
                raise ValueError(f"row {at} is not class (1 to 4), title, description: {line!r:.80}")
        if not lines:
            raise ValueError("it is empty")
    return [(words_of(f"{line[1]} {line[2]}"), int(line[0]) - 1) for line in lines]
