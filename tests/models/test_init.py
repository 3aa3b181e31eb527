"""Initial weights: distributions of torch and torchvision, from the given generator alone."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from bench.errors import UserError
from bench.models.factory import build
from bench.models.init import Rule, initialise, normal
from bench.models.transformers import small_normal
from bench.rng import generator

IMAGE = (3, 32, 32)


def test_float64_is_rounded_to_float32_not_drawn_anew() -> None:
    net = build("mlp", (64,), 10)
    double = initialise(net, generator(0, "weights"), torch.float64)
    single = initialise(net, generator(0, "weights"))
    assert all(
        double[path].dtype == torch.float64 and torch.equal(double[path].float(), single[path]) for path in single
    )


def test_default_layers_are_uniform_within_one_over_root_fan_in() -> None:
    values = initialise(build("cnn", IMAGE, 10), generator(0, "weights"), torch.float64)
    for path, fan_in in [("body.conv1", 3 * 25), ("body.conv2", 32 * 25), ("body.fc1", 1600), ("head", 512)]:
        bound = 1 / math.sqrt(fan_in)
        weight = values[f"{path}.weight"]
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.99 * bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert 0 < values[f"{path}.bias"].abs().max() <= bound


@pytest.mark.parametrize(("name", "conv"), [("resnet18", "body.layer3.0.conv1"), ("vgg11", "body.0.11")])
def test_convolutions_of_resnets_and_vgg_are_normal_by_fan_out_and_norms_are_units(name: str, conv: str) -> None:
    """Convolutions of VGG have biases, which start at 0; linear layers are the default's."""
    values = initialise(build(name, IMAGE, 10), generator(0, "weights"), torch.float64)
    weight = values[f"{conv}.weight"]  # 256 filters of 3 x 3
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.02)
    assert weight.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert weight.abs().max() > 3 * weight.std()  # a uniform distribution ends at √3 of them
    assert 0.98 / math.sqrt(512) < values["head.weight"].abs().max() <= 1 / math.sqrt(512)
    if name == "vgg11":
        assert not values["body.0.11.bias"].any()
        assert values["body.2.bias"].any()
    else:
        for kind, value in {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}.items():
            assert bool((values[f"body.bn1.{kind}"] == value).all())


def test_an_unknown_layer_is_named_unless_the_model_has_a_rule_for_it() -> None:
    class Slopes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slopes = nn.PReLU(5)

    with torch.device("meta"):
        net = Slopes()
    with pytest.raises(UserError, match=re.escape("'slopes.weight' (PReLU)")):
        initialise(net, generator(0))

    class SlopesWithRule(Slopes):
        rules = {nn.PReLU: lambda layer, name, rng: rng.normal(size=layer.get_parameter(name).shape)}  # noqa: RUF012

    with torch.device("meta"):
        ruled = SlopesWithRule()
    drawn = initialise(ruled, generator(0), torch.float64)["slopes.weight"]
    assert torch.equal(drawn, torch.from_numpy(generator(0).normal(size=5)))


@pytest.mark.parametrize("rule", [normal, small_normal])
def test_the_row_of_a_padding_token_is_zero_and_the_others_as_without(rule: Rule) -> None:
    plain, padded = (rule(nn.Embedding(5, 3, padding_idx=at), "weight", generator(0, "weights")) for at in (None, 1))
    assert not padded[1].any()
    assert plain[1].all()
    assert np.array_equal(np.delete(padded, 1, axis=0), np.delete(plain, 1, axis=0))
