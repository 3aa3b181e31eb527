"""Training with differential privacy of samples (DP-SGD, Abadi et al. 2016, "Deep Learning with Differential Privacy",
algorithm 1): which trainings it is for, what is refused, and how many steps each client has taken.

It is for losses that are a mean over samples. Whether one is cannot be read from its code, so it is compared: the loss
of a batch with the mean of its samples' losses, with the same draws (`refuse_mixing`).

The step itself is in `bench/engine/step.py`: the gradient of each sample alone is clipped, and their sum has Gaussian
noise. A sample is in each batch by its own coin (`bench.engine.batches.draw_poisson`). Draws of noise and of batches
have addresses of their own, so that no two trainings share them.
"""

from collections import Counter
from typing import Any

from torch import Tensor

from bench.data import Array
from bench.engine.batches import DrawAddress
from bench.engine.step import Recipe
from bench.errors import UserError
from bench.requests import Train
from bench.rng import generator

OWN = ("train", "remainder", "holdout", "earlier")
"""Feeds of a client's own samples, which the noise is for."""
_ROUNDING = 1e-4
"""Largest relative difference of two ways to compute a mean loss that is rounding."""


def noise_of(address: DrawAddress, part: str, size: int, steps: int) -> Array:
    """Draw the noise of a part of `size` trained numbers in a training: standard normal, `[steps, size]`."""
    at = (address.seed, address.round, address.owner, address.purpose, address.training, part)
    return generator("dp_sgd", *at).standard_normal((steps, size))


def refuse(request: Train, recipe: Recipe) -> None:
    """Refuse a training whose gradient is not the mean of one gradient for each sample.

    Raises:
        UserError: it has a step of its own or side feeds, or a network has batch statistics.
    """
    if recipe.step is not None:
        problem = f"{recipe.name} is a step of the method's own and no plain gradient step"
    elif request.side:
        problem = f"{recipe.name} reads a second batch ({', '.join(request.side)}) beside a sample"
    elif recipe.moves_statistics:
        problem = (
            "a network has batch statistics, which mix the samples of a batch (take one with GroupNorm), mixes them in "
            "another way, or draws random numbers whose first dimension is not the batch"
        )
    else:
        return
    raise UserError(f"dp_sgd: {problem}. Gradients cannot be clipped by sample here; or take out `dp_sgd`")


def refuse_mixing(recipe: Recipe, of_batch: Tensor, of_samples: Tensor) -> None:
    """Refuse a loss that mixes the samples of a batch: gradients by sample would be those of another loss.

    Args:
        recipe: of the training.
        of_batch: `[]` the loss of a batch.
        of_samples: `[samples]` the losses of its samples, each as a batch of its own.

    Raises:
        UserError: the first is not the mean of the others, but for rounding.
    """
    difference, scale = (of_batch - of_samples.mean()).abs(), of_samples.abs().mean()
    if difference > _ROUNDING * (scale + 0.01):  # so that losses of almost 0 are not compared digit by digit
        raise UserError(
            f"dp_sgd: {recipe.name} is {float(of_batch):.6g} for a batch and {float(of_samples.mean()):.6g} on average "
            "for its samples one by one: it mixes the samples of a batch. Gradients cannot be clipped by sample here; "
            "take out `dp_sgd`"
        )


class PrivateSteps:
    """Count of the noisy steps, and what else was computed from samples without noise.

    Attributes:
        steps: by client, how many steps it has taken at which sampling rate.
        looks: kinds of requests that read a client's samples in another way.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Counter[float]] = {}
        self.looks: set[str] = set()

    def add(self, client: int, rate: float, steps: int) -> None:
        """Count steps of a client whose samples are in a batch with this probability."""
        self.steps.setdefault(client, Counter())[rate] += steps

    def state(self) -> dict[str, Any]:
        """All counts, in plain values."""
        steps = {client: [[rate, count] for rate, count in rates.items()] for client, rates in self.steps.items()}
        return {"steps": steps, "looks": sorted(self.looks)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the counts of `state`."""
        self.steps = {client: Counter(dict(map(tuple, rates))) for client, rates in state["steps"].items()}
        self.looks = set(state["looks"])
