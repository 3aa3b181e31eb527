"""`organamnist`: abdominal CT slices of eleven organs, MedMNIST's file (Yang et al. 2023, https://medmnist.com)."""

from pathlib import Path

from bench.data import Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.npz import read_samples
from datasets.published import fault_of, fetch

_NAME = "organamnist"
URL = "https://zenodo.org/records/10519652/files/organamnist.npz?download=1"
MD5 = "68e3f8846a6bd62f0c9bf841c0d9eacc"  # of MedMNIST 2.2 and later; earlier files have some additional blank slices
_CLASSES = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left", "lung-right",
    "pancreas", "spleen",
)  # fmt: skip


@DATASETS.register(_NAME)
def load(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """OrganAMNIST: `[58830, 1, 28, 28]`, 41,052 for training (including the validation part), 11 classes.

    Args:
        data_root: holds `organamnist.npz`.
        mean, std: in units of `x / 255`; MedMNIST's own 0.5 and 0.5 unless given.
    """
    from torchvision.datasets.utils import download_url

    file = data_root / f"{_NAME}.npz"
    fetch(_NAME, lambda: fault_of({file: MD5}), download, lambda: download_url(URL, str(data_root), file.name, MD5))
    x, y, sizes, _ = read_samples(file)
    return assemble(_NAME, x, y, len(y) - sizes["test"], mean=mean or [0.5], std=std or [0.5], classes=_CLASSES)
