"""Texts as sequences of word numbers: 0 is padding at the end, 1 a word that is not among the most frequent ones."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bench.data import Array

PADDING, UNKNOWN, FIRST = 0, 1, 2
_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.lower())


def numbered(train: Sequence[list[str]], test: Sequence[list[str]], vocabulary: int, length: int) -> Array:
    """Number the words of texts: int32 tokens `[n, length]`, those of the test part last.

    The most frequent word of the training part has the number 2; equally frequent words are in alphabetical order.

    Args:
        train, test: the words of each text.
        vocabulary: number of tokens, including those for padding and for unknown words.
        length: number of words kept of each text; the rest is cut off.
    """
    counts = Counter(word for words in train for word in words)
    likely = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST]
    number = {word: i for i, word in enumerate(likely, start=FIRST)}
    x = np.full((len(train) + len(test), length), PADDING, np.int32)
    for row, words in zip(x, [*train, *test], strict=True):
        numbers = [number.get(word, UNKNOWN) for word in words[:length]]
        row[: len(numbers)] = numbers
    return x
