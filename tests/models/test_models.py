"""Models: parameter counts of the papers, the body/head cut, and that they do what torch does."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bench.data import TokenShape
from bench.errors import UserError
from bench.models.factory import build, describe
from bench.models.init import initialise
from bench.models.network import Network
from bench.rng import generator
from tests.models.helpers import filled

PLAIN = ["cnn", "comet_cnn", "flower_cnn", "lenet", "logistic", "mlp", "spfl_cnn"]
PLAIN += ["resnet18", "resnet34", "resnet50", "vgg11", "vgg13"]
DEEP = ["mobilenet_v3_small", "resnet18_gn", "resnet50_gn", "vit_tiny"]
ALL = PLAIN + DEEP
NUMBERS = ["mlp", "logistic", "cnn", "resnet18", "vgg11", "har_cnn", "vit_tiny", "mobilenet_v3_small"]
TOKENS = ["char_lstm", "gru", "fasttext", "pfllib_fasttext", "textcnn", "transformer"]
LONG = {"resnet18", "resnet18_gn", "resnet34", "resnet50", "resnet50_gn", "vgg11", "vgg13"}
CIFAR, MNIST, IMAGENET = (3, 32, 32), (1, 28, 28), (3, 224, 224)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "expected"),
    [
        ("cnn", CIFAR, 100, {}, 924_708),
        ("cnn", MNIST, 11, {}, 582_539),
        ("spfl_cnn", MNIST, 47, {}, 459_793),
        ("spfl_cnn", CIFAR, 100, {}, 718_382),
        ("spfl_cnn", CIFAR, 10, {"hidden": 500}, 657_080),
        ("comet_cnn", CIFAR, 100, {}, 80_926),
        ("lenet", CIFAR, 10, {}, 121_182),
        ("flower_cnn", CIFAR, 10, {}, 308_098),
        ("flower_cnn", CIFAR, 100, {"wide": True}, 1_075_428),
        ("vgg11", CIFAR, 100, {}, 9_802_596),
        ("vgg13", CIFAR, 100, {}, 9_987_492),
        ("vgg11", (1, 64, 32), 10, {}, 9_756_426 - 2 * 9 * 64 + 512 * 512),
        ("char_lstm", TokenShape(80, 80), 80, {}, 819_920),  # LEAF's, with torch's two biases
        ("pfllib_fasttext", TokenShape(200, 32_000), 4, {}, 32_000 * 512 + 512 * 513 + 4 * 513),
        ("logistic", MNIST, 10, {}, 7_850),
        ("mlp", (64,), 10, {}, 65 * 200 + 201 * 10),
        ("mlp", MNIST, 10, {"layers": 2}, 199_210),  # McMahan et al. 2017, section 3
        ("resnet18", CIFAR, 10, {}, 11_173_962),
        ("resnet34", CIFAR, 100, {}, 21_328_292),
        ("resnet18_gn", CIFAR, 10, {}, 11_173_962),
        ("resnet18", IMAGENET, 1000, {}, 11_689_512),  # this and the next are in torchvision's documentation
        ("resnet34", IMAGENET, 1000, {}, 21_797_672),
        ("resnet50", IMAGENET, 1000, {}, 25_557_032),
        ("resnet50_gn", IMAGENET, 1000, {"groups": 2}, 25_557_032),
        ("mobilenet_v3_small", IMAGENET, 1000, {}, 2_542_856),
        ("vit_tiny", IMAGENET, 1000, {}, 5_717_416 - 2 * 192),  # DeiT-Ti less its class token and that one's place
    ],
)
def test_parameter_counts(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, int], expected: int
) -> None:
    assert describe(name, shape, classes, options)["parameters"] == expected


def test_describe_counts_body_head_and_buffers() -> None:
    described = describe("spfl_cnn", MNIST, 10, {"hidden": 500})
    assert described["body"] + described["head"] == described["parameters"] == 431_080
    assert (described["head"], described["buffers"]) == (5_010, 0)
    # Mean and variance of every normalised channel: stem, 4 x 64, then 4 x width and a shortcut in three stages.
    assert describe("resnet18", CIFAR, 10)["buffers"] == 2 * (64 + 4 * 64 + 5 * (128 + 256 + 512))


def test_flower_s_network_is_that_of_plain_torch() -> None:
    """In training, by batches: pooling before the ReLU and after the BatchNorm changes nothing."""
    meta = build("flower_cnn", CIFAR, 7)
    net = filled(meta, initialise(meta, generator(0, "weights")))
    rng = generator(0, "scales")
    layers = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d | nn.Conv2d | nn.Linear)]
    for layer in layers:
        if isinstance(layer, nn.BatchNorm2d):  # some scales are negative
            layer.weight.data = torch.from_numpy(rng.normal(size=layer.weight.shape)).float()
            layer.bias.data = torch.from_numpy(rng.normal(size=layer.bias.shape)).float()
    conv1, norm1, conv2, norm2, hidden1, hidden2, head = layers
    shapes = [tuple(layer.weight.shape) for layer in layers]
    assert shapes == [(64, 3, 5, 5), (64,), (64, 64, 5, 5), (64,), (120, 1600), (64, 120), (7, 64)]
    x = torch.from_numpy(rng.normal(size=(6, *CIFAR))).float()
    z = x
    for conv, norm in ((conv1, norm1), (conv2, norm2)):
        z = functional.conv2d(z, conv.weight, conv.bias)
        z = functional.batch_norm(z, None, None, norm.weight, norm.bias, training=True)
        z = functional.max_pool2d(functional.relu(z), 2)
    for hidden in (hidden1, hidden2):
        z = functional.relu(functional.linear(z.flatten(1), hidden.weight, hidden.bias))
    expected = functional.linear(z, head.weight, head.bias)
    torch.testing.assert_close(net.train()(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in ALL])
def test_logits_are_the_head_of_the_features_and_the_cut_is_by_name(name: str) -> None:
    meta = build(name, CIFAR, 7)
    net = filled(meta, initialise(meta, generator(0, "weights"))).eval()
    assert isinstance(net, Network)
    assert not any(getattr(layer, "inplace", False) for layer in net.modules())
    assert not any(path.endswith("num_batches_tracked") for path, _ in net.named_buffers())
    x = torch.from_numpy(generator(0, "x").normal(size=(2, *CIFAR))).float()
    with torch.no_grad():
        z = net.features(x)
        assert z.ndim == 2
        assert torch.equal(net(x), net.head(z))
        assert net(x).shape == (2, 7)
    assert {path for path, _ in net.named_parameters() if path.startswith("head.")} == {"head.weight", "head.bias"}
    body = [p.detach() for path, p in net.named_parameters() if not path.startswith("head.")]
    for p in body:
        p.zero_()
    assert not body or bool((net.features(x) == 0).all())  # all that makes features lies outside `head.*`


def test_the_cnn_is_its_paper_s_formula() -> None:
    """Convolution, ReLU and pool written out with `unfold`, on one image."""
    net = build("cnn", (1, 16, 16), 3, {"hidden": 4})
    w = initialise(net, generator(0, "weights"), torch.float64)
    x = torch.from_numpy(generator(0, "x").normal(size=(1, 16, 16)))

    def block(x: Tensor, layer: str) -> Tensor:
        patches = x.unfold(1, 5, 1).unfold(2, 5, 1)
        maps = torch.einsum("chwij,ocij->ohw", patches, w[f"{layer}.weight"]) + w[f"{layer}.bias"][:, None, None]
        return maps.clamp(min=0).unfold(1, 2, 2).unfold(2, 2, 2).amax((-1, -2))

    z = block(block(x, "body.conv1"), "body.conv2").reshape(-1)
    z = (w["body.fc1.weight"] @ z + w["body.fc1.bias"]).clamp(min=0)
    expected = w["head.weight"] @ z + w["head.bias"]
    torch.testing.assert_close(functional_call(net, w, (x[None],))[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("side", "map_side"), [(32, 32), (64, 64), (65, 17), (224, 56)])
def test_the_resnet_stem_keeps_small_images_whole(side: int, map_side: int) -> None:
    body = build("resnet18", (3, side, side), 10).body
    assert isinstance(body, nn.Module)
    seen: list[tuple[int, ...]] = []
    first = body.get_submodule("layer1")
    first.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[2:])))
    body(torch.empty(2, 3, side, side, device="meta"))
    assert seen == [(map_side, map_side)]


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("cnn", (3, 32, 15), {}, r"at least 16 x 16.*\(3, 32, 15\)"),
        ("spfl_cnn", (64,), {}, "at least 16 x 16"),
        ("comet_cnn", (3, 12, 32), {}, "at least 16 x 16"),
        ("vgg11", MNIST, {}, r"'vgg11' needs images of at least 32 x 32 .*\(1, 28, 28\)"),
        ("vgg13", (64,), {}, "at least 32 x 32"),
        ("vit_tiny", (64,), {}, "model 'vit_tiny' needs images"),
        ("mobilenet_v3_small", (64,), {}, "model 'mobilenet_v3_small' needs images"),
        ("mlp", (64,), {"hiden": 3}, "unknown option 'hiden'.*Did you mean 'hidden'"),
        ("mlp", (64,), {"layers": "two"}, "model 'mlp': layers = .*should be an integer"),
        ("har_cnn", (3, 15), {}, "at least 16 steps"),
        ("textcnn", TokenShape(4, 9), {}, "5 tokens or more"),
        ("transformer", TokenShape(6, 9), {"width": 8, "heads": 3}, "3 heads do not divide a width of 8"),
        ("vit_tiny", (1, 28, 30), {}, "images of 28 x 30 pixels have no patches of 4 x 4"),
        ("resnet18_gn", (3, 8, 8), {"groups": 5}, "groups 5 do not divide its 64 channels"),
        *((name, TokenShape(80, 90), {}, f"model '{name}' needs .*'char_lstm'") for name in NUMBERS),
        *((name, (80, 90), {}, f"model '{name}' needs tokens, and the samples have shape") for name in TOKENS),
    ],
)
def test_what_does_not_fit_is_said(name: str, shape: tuple[int, ...], options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(name, shape, 10, options)
