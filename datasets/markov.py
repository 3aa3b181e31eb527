"""`markov`: synthetic text of a few letters; each speaker draws the next letter from a Markov chain.

Nothing is fetched, and the best possible accuracy is known: a model that knows the chain is right as often as the chain
draws the most likely letter.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from bench.rng import generator
from datasets.assemble import assemble, held_out_order

_CONCENTRATION = 0.1  # of the Dirichlet draw of a chain's row; mostly only one or two letters are likely to follow

Letters = Annotated[int, Field(ge=2, le=26)]


@DATASETS.register("markov")
def load(
    *,
    data_root: Path,
    download: bool,
    letters: Letters = 8,
    length: PositiveInt = 8,
    speakers: PositiveInt = 20,
    samples: PositiveInt = 200,
    own: Annotated[float, Field(ge=0, le=1)] = 0.5,
    draw: NonNegativeInt = 0,
    name: str = "markov",
) -> Dataset:
    """Tokens `[n, length]` with the next letter as label and a fixed stratified 25 % as test part; groups: speakers.

    Args:
        letters: number of different letters.
        length: letters of a sample, without the next one.
        speakers: number of speakers.
        samples: number of samples of each speaker.
        own: weight of the chain drawn for a speaker alone; the rest is a chain common to all (0: all speakers alike).
    """
    transitions = chains(letters, speakers, own, draw)
    texts = np.concatenate([_texts(chain, samples, length + 1, draw, i) for i, chain in enumerate(transitions)])
    x, y, speaker = texts[:, :-1], texts[:, -1], np.repeat(np.arange(speakers), samples)
    order, n_train = held_out_order(y)
    classes = [chr(ord("a") + i) for i in range(letters)]
    return assemble(
        name, x[order], y[order], n_train, classes=classes, groups=speaker[order],
        vocabulary=letters,
    )  # fmt: skip


def chains(letters: int, speakers: int, own: float, draw: int = 0) -> npt.NDArray[np.float64]:
    """Draw the speakers' chains `[speakers, letters, letters]`: probabilities of the next letter (last axis)."""
    everybody, *each = (
        generator("markov", draw, "chain", i).dirichlet([_CONCENTRATION] * letters, letters)
        for i in range(speakers + 1)
    )
    return (1 - own) * everybody + own * np.stack(each)


def _texts(chain: npt.NDArray[np.float64], samples: int, length: int, draw: int, speaker: int) -> Array:
    """Draw letters `[samples, length]`; the first letter of each sample is drawn uniformly."""
    rng = generator("markov", draw, "text", speaker)
    text = rng.integers(len(chain), size=(samples, length))
    below = chain.cumsum(axis=1)
    for step in range(1, length):
        text[:, step] = (rng.random((samples, 1)) > below[text[:, step - 1]]).sum(axis=1).clip(max=len(chain) - 1)
    return text
