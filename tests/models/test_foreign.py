"""Networks of torchvision, timm and transformers that draw in training, as their authors write them."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from bench.federation.federation import Federation
from bench.models.network import with_head
from bench.settings import Settings
from tests.engine.problems import toy_partition
from tests.models.helpers import pictures
from tests.models.plain_loop import check_draws

SIZES = [5, 3]
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # of cohorts with torch's attention
    pytest.mark.parametrize("method", ["fedavg", "ditto"]),
]
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
DROPS = {"drop_rate": 0.1, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1, "patch_drop_rate": 0.2, "drop_path_rate": 0.2}


def check(method: str, model: str, side: int = 32, dtype: str = "float64", **settings: Any) -> None:
    """Check two clients with a few small pictures."""
    data = pictures(side, channels=3)

    def federation(executor: str) -> Federation:
        return Federation(
            Settings(
                method=method, model=model, dtype=dtype, batch_size=4, lr=0.003, seed=3, clients=len(SIZES),
                epochs=1, **settings,
            ),
            dataset=data, partition=toy_partition(data, SIZES), executor=executor, public=None,
        )  # fmt: skip

    assert federation("cohort").server.initial_model().spec.draws
    check_draws(federation, data, SIZES, 1e-6 if dtype == "float64" else 2e-3)


LONG, SLOW = pytest.mark.long, pytest.mark.slow
NETWORKS = [
    pytest.param("torchvision/mobilenet_v3_small", {}, marks=LONG),
    pytest.param("torchvision/efficientnet_b0", {"stochastic_depth_prob": 0.4}, marks=SLOW),
    pytest.param("torchvision/convnext_tiny", {"stochastic_depth_prob": 0.3}, marks=SLOW),
    pytest.param("torchvision/swin_t", {}, marks=SLOW),
    pytest.param("timm/vit_tiny_patch16_224", SMALL | DROPS, marks=LONG),
    pytest.param("timm/resnet10t", {"drop_path_rate": 0.2, "drop_rate": 0.2, "drop_block_rate": 0.2}, marks=LONG),
    pytest.param("timm/convnext_atto", {"drop_path_rate": 0.2, "depths": [1] * 4, "dims": [8, 8, 16, 16]}, marks=LONG),
]


@pytest.mark.parametrize(("model", "options"), NETWORKS)
def test_of_torchvision_and_timm(method: str, model: str, options: dict[str, Any]) -> None:
    pytest.importorskip(model.partition("/")[0])
    side = 64 if "efficientnet" in model else 32  # BatchNorm over a single place would magnify rounding
    check(method, model, side, model_options=options)


@pytest.mark.slow
def test_alexnet_of_torchvision(method: str) -> None:
    """57 million parameters in the layers after its dropout, so in float32."""
    check(method, "torchvision/alexnet", 64, "float32", frozen=("body.features",))


WIDTHS = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip


def vit(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small Vision Transformer of Hugging Face."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**WIDTHS, image_size=shape[1], patch_size=8, num_channels=shape[0], num_labels=classes)
    return with_head(ViTForImageClassification(config), "classifier")


@pytest.mark.long
@pytest.mark.parametrize("theirs", [vit], indirect=True)
def test_of_transformers_by_file(method: str, tmp_path: Path) -> None:
    """It starts from what `save_pretrained` has written."""
    pytest.importorskip("transformers")
    net: Any = vit((3, 32, 32), 3)
    net.body.save_pretrained(tmp_path)
    check(method, "theirs", pretrained=str(tmp_path / "model.safetensors"))
