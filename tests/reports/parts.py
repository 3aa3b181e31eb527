"""Made-up components of a league, for tests of its simulations."""

import numpy as np

from tools.simulation.components import Components


def parts(noise: float, methods: int = 6) -> Components:
    """Four tasks of two families; methods are a fifth of a logit apart, some two points at 90 %."""
    levels = np.repeat(2.2 - 0.2 * np.arange(methods)[None], 4, axis=0)
    trials = [[np.array([level, level - 0.3]) for level in task] for task in levels]
    families = ["one", "one", "one", "two"]
    draws = noise * np.array([1.5, 0.1, -0.4, -1.2]) * np.ones((*levels.shape, 1))
    return Components(levels, np.full(levels.shape, noise), trials, families, np.full(levels.shape, 2.0), draws)
