"""`synthetic`: devices whose labels come from models of their own, Synthetic(alpha, beta) of Li et al. 2020.

"Federated Optimization in Heterogeneous Networks" (FedProx, arXiv:1812.06127), section 5.1 and appendix C.1.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from bench.rng import generator
from datasets.assemble import assemble, held_out_order

FEATURES, CLASSES = 60, 10
_LEAST = 50  # smallest number of samples of a device


@DATASETS.register("synthetic")
def load(
    *,
    data_root: Path,
    download: bool,
    model_variance: NonNegativeFloat = 1.0,
    input_variance: NonNegativeFloat = 1.0,
    devices: PositiveInt = 30,
    largest: Annotated[int, Field(ge=_LEAST)] | None = None,
    draw: NonNegativeInt = 0,
    name: str = "synthetic",
) -> Dataset:
    """Features `[n, 60]` of ten classes with a fixed stratified 25 % as test part; groups are the devices.

    Device k draws u_k from N(0, alpha) and B_k from N(0, beta), the entries of W_k and b_k from N(u_k, 1), and those of
    the mean v_k of its samples from N(B_k, 1). A sample is x ~ N(v_k, diag(j^-1.2)), its label argmax(W_k x + b_k).

    Args:
        model_variance: the paper's alpha: how much the devices' models differ.
        input_variance: the paper's beta: how much their inputs differ. The released code takes both as standard
            deviations, which is the same at 0 and 1.
        devices: number of devices.
        largest: upper limit of the devices' sizes, which are 50 plus a log-normal number (its logarithm has mean 4 and
            standard deviation 2).
    """
    streams = [generator("synthetic", draw, device) for device in range(devices)]
    parts = [_device(model_variance, input_variance, largest, rng) for rng in streams]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    owners = np.repeat(np.arange(devices), [len(labels) for _, labels in parts])
    order, n_train = held_out_order(y)
    zeros, ones = [0.0] * FEATURES, [1.0] * FEATURES  # the paper's features are not standardised
    classes = [str(label) for label in range(CLASSES)]
    return assemble(name, x[order], y[order], n_train, mean=zeros, std=ones, classes=classes, groups=owners[order])


def _device(alpha: float, beta: float, largest: int | None, rng: np.random.Generator) -> tuple[Array, Array]:
    """Samples `[n, 60]` float32 and labels `[n]` of one device."""
    size = _LEAST + int(rng.lognormal(4.0, 2.0))
    model, inputs = rng.normal(0.0, np.sqrt(alpha)), rng.normal(0.0, np.sqrt(beta))
    weight = rng.normal(model, 1.0, (CLASSES, FEATURES))
    bias = rng.normal(model, 1.0, CLASSES)
    mean = rng.normal(inputs, 1.0, FEATURES)
    deviation = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variances j^-1.2
    x = rng.normal(mean, deviation, (min(size, largest or size), FEATURES)).astype(np.float32)
    return x, (x.astype(np.float64) @ weight.T + bias).argmax(axis=1)
