"""The federation of a cell: its data on its device, and recorded steps that the cells of a process share."""

import functools
import logging

import torch

from bench.engine.engine import hp_values
from bench.engine.recorded_steps import GraphCache
from bench.federation.cell_data import CellData
from bench.federation.features import Shelf, computed
from bench.federation.federation import Federation
from bench.plugin import METHODS
from bench.runs.cell_options import Options, choose_device
from bench.runs.forecast.estimate import keep_on_host
from bench.settings import Settings

log = logging.getLogger(__name__)


def build(settings: Settings, options: Options, data: CellData, features: Shelf = computed) -> Federation:
    """Build the federation of a cell, before its first round.

    Raises:
        UserError: its data, its device or its settings do not allow it.
    """
    dataset, partition, public = data
    device = choose_device(options.device)
    offload = keep_on_host(settings, len(partition), dataset.shape, dataset.num_classes, device, options.cells)
    if offload:
        log.info("the clients' models are too many for the GPU: they are kept in the host's memory")
    return Federation(
        settings,
        dataset=dataset,
        partition=partition,
        device=device,
        executor=options.executor,
        threads=options.threads,
        public=public,
        offload=offload,
        recordings=recordings(settings, device),
        allow_fallback=options.allow_fallback,
        features=features,
    )


def recordings(settings: Settings, device: str) -> GraphCache:
    """Recorded steps of the last method in this process. Cells that differ in seed, partition or hyperparameters that a
    loss receives as tensors share them, because recording takes as long as tens of rounds."""
    cache = last_recordings(*recordings_key(settings, device))
    cache.begin_cell()
    return cache


def recordings_key(settings: Settings, device: str) -> tuple[str, ...]:
    """Method, plain hyperparameters, dtype and device: cells that have them in common share recorded steps."""
    hyper = METHODS.get(settings.method).Hyper(**settings.hp)
    values = hp_values(hyper, torch.float64, torch.device("cpu"))
    plain = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
    return settings.method, repr(plain), settings.dtype, device


@functools.lru_cache(1)  # most grids have the cells of a method one after the other
def last_recordings(*key: str) -> GraphCache:
    """The recorded steps of the last key that was asked for; empty for a new one."""
    return GraphCache()
