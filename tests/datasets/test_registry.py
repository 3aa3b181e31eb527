"""What the harness relies on when it checks options and starts on a bare machine."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from bench.plugin import DATASETS, PARTITIONS

OURS = [
    "ag_news", "camelyon17", "celeba", "cifar10", "cifar100", "csv", "digits", "emnist", "emnist_writers",
    "fashion_mnist", "femnist", "flowers102", "gtsrb", "har", "hugging_face", "image_folder", "iwildcam", "kmnist",
    "markov", "mnist", "motion", "npz", "organamnist", "pamap2", "parquet", "pfllib",
    "sent140", "shakespeare", "stl10", "svhn", "texts", "tinyimagenet", "usps",
    "watch",
]  # fmt: skip
ROOT = Path(__file__).parents[2]


def test_names() -> None:
    assert set(OURS) <= set(DATASETS.names())
    assert {"classes", "dirichlet", "file", "iid"} <= set(PARTITIONS.names())


@pytest.mark.parametrize("name", OURS)
def test_every_option_is_a_keyword_with_a_type_that_json_can_hold(name: str) -> None:
    parameters = inspect.signature(DATASETS.get(name)).parameters
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())
    for option in parameters.keys() - {"data_root", "download"}:
        TypeAdapter(parameters[option].annotation).json_schema()


def test_the_package_loads_where_only_the_core_is_installed() -> None:
    optional = ["sklearn", "torchvision", "matplotlib", "PIL", "scipy", "mlflow"]
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({optional}))\n"  # None: importing them fails
        "from bench.plugin import DATASETS, PARTITIONS\n"
        "print(len(DATASETS.names()), len(PARTITIONS.names()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
