"""`motion`: synthetic readings of an accelerometer that people wear, each in a personal way.

Nothing is fetched. As in real recordings (`har`), a class has its own rhythm, and a person has an orientation of the
sensor, a pace and a gain.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from bench.rng import generator
from datasets.assemble import assemble, held_out_order

_AXES = 3
_HARMONICS = 3


@DATASETS.register("motion")
def load(
    *,
    data_root: Path,
    download: bool,
    activities: Annotated[int, Field(ge=2)] = 6,
    steps: Annotated[int, Field(ge=16)] = 64,
    people: PositiveInt = 20,
    samples: PositiveInt = 60,
    turned: Annotated[float, Field(ge=0, le=1)] = 1.0,
    noise: NonNegativeFloat = 1.0,
    draw: NonNegativeInt = 0,
    name: str = "motion",
) -> Dataset:
    """Series `[n, 3, steps]` with a fixed stratified 25 % as test part; groups are the people.

    Args:
        activities: number of classes; each has its own amplitudes and phases of three harmonics in three axes.
        steps: length of a series in readings.
        people: number of people.
        samples: number of samples of each person; the numbers for two activities differ by at most one.
        turned: largest rotation of a person's sensor, around an axis of the person's own, in half turns.
        noise: standard deviation of the noise; that of the readings without noise is about 1.
    """
    rng = generator("motion", draw, "activities")
    waves = rng.normal(size=(activities, _AXES, _HARMONICS)) * np.exp(
        2j * np.pi * rng.random((activities, 1, _HARMONICS))
    )
    y = np.tile(np.arange(samples) % activities, people)
    x = np.concatenate([_person(waves, y[:samples], steps, turned, noise, draw, i) for i in range(people)])
    order, n_train = held_out_order(y)
    person = np.repeat(np.arange(people), samples)
    return assemble(name, x[order], y[order], n_train, groups=person[order])


def _person(waves: Array, y: Array, steps: int, turned: float, noise: float, draw: int, person: int) -> Array:
    """Draw float32 readings `[n, 3, steps]` of one person's activities."""
    rng = generator("motion", draw, "person", person)
    axis = rng.normal(size=_AXES)
    turn = _rotation(axis / np.linalg.norm(axis), turned * np.pi * rng.random())
    pace, gain = rng.uniform(0.8, 1.25), rng.uniform(0.8, 1.25)
    time = pace * np.arange(steps) / 16 + rng.random((len(y), 1))  # a period is 16 steps; samples start at any phase
    rhythm = np.exp(2j * np.pi * time[:, None] * np.arange(1, _HARMONICS + 1)[:, None])
    readings = np.einsum("ij,njh,nht->nit", turn, waves[y], rhythm).real * gain / np.sqrt(_HARMONICS / 2)
    series: Array = (readings + noise * rng.normal(size=readings.shape)).astype(np.float32)
    return series


def _rotation(axis: Array, angle: float) -> Array:
    """The rotation matrix `[3, 3]` by Rodrigues' formula."""
    cross: Array = np.cross(np.eye(_AXES), axis)
    turn: Array = np.eye(_AXES) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return turn
