"""Adapters: which layers get which, what they start with, what is frozen, and networks with adapters merged."""

import copy
import itertools
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor, nn
from torch.func import functional_call

from bench.data import TokenShape
from bench.engine.lanes import LaneConvolution, with_lanes
from bench.errors import UserError
from bench.models import adapters
from bench.models.factory import build
from bench.models.fourier import FourierConv2d
from bench.models.init import initialise
from bench.plugin import MODELS
from bench.rng import generator
from bench.settings import AdapterSettings, BottleneckSettings, LoraSettings, PlainAdapters

KINDS: TypeAdapter[AdapterSettings] = TypeAdapter(Annotated[AdapterSettings, Field(discriminator="name")])
LORA = LoraSettings(name="lora", rank=2, alpha=6)


def filled(net: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The network with random values everywhere: an adapter that is zero would hide mistakes."""
    rng = torch.Generator().manual_seed(1)
    net = net.to_empty(device="cpu").to(dtype).eval()
    for tensor in (*net.parameters(), *net.buffers()):
        with torch.no_grad():
            tensor.copy_(torch.rand(tensor.shape, generator=rng, dtype=torch.float64) + 0.1)
    return net


class Layers(nn.Module):
    """One of each layer that adapters know, none of them with a square weight."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(2, 3)


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 4), (7, 5)),
    "linear without bias": (lambda: nn.Linear(5, 4, bias=False), (7, 5)),
    "linear of sequences": (lambda: nn.Linear(5, 4), (7, 3, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (7, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (7, 3, 6, 5)),
    "conv2d, strided, dilated, reflected": (
        lambda: nn.Conv2d(3, 4, (3, 2), stride=2, padding=2, dilation=(1, 2), padding_mode="reflect", bias=False),
        (7, 3, 9, 8),
    ),
    "conv2d of the papers' CNNs": (lambda: FourierConv2d(3, 4, 5), (7, 3, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(3, 4, 2), (7, 3, 4, 4, 4)),
}


@pytest.mark.parametrize("kind", ["lora", "ia3"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_merged_layer_gives_what_the_adapted_one_gave(layer: str, kind: str) -> None:
    """To 1e-12 in float64, to 1e-6 of the largest output in float32; weights and outputs did change.

    Merging leaves the given network as it is, and names as they were without adapters.
    """
    make, shape = LAYERS[layer]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        net: Any = adapters.insert(Layers(make()).to("meta"), KINDS.validate_python({"name": kind}), "mine")
        net = filled(net, dtype)
        x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
        state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        merged: Any = adapters.merged(net)
        assert list(merged.state_dict()) == list(Layers(make()).state_dict())
        assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in state.items())
        with torch.no_grad():
            adapted, plain = net.layer(x), merged.layer(x)
        assert (adapted - plain).abs().max() <= tolerance * adapted.abs().max()
        assert plain.shape == adapted.shape
        assert not torch.allclose(adapted, without(net).layer(x), rtol=1e-2)  # type: ignore[operator]


def without(net: nn.Module) -> nn.Module:
    """The network with its adapters taken out, and not merged."""
    state = net.state_dict()
    plain = adapters.merged(net)
    plain.load_state_dict({name: tensor for name, tensor in state.items() if name in plain.state_dict()})
    return plain


@pytest.mark.parametrize("layer", LAYERS)
def test_no_gradient_goes_back_through_detached_ranks_of_lora(layer: str) -> None:
    """The outputs stay as they are; the inputs' gradient is that of a layer whose B is zero there."""
    make, shape = LAYERS[layer]
    net = filled(adapters.insert(Layers(make()).to("meta"), LoraSettings(name="lora"), "mine"))
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    without_some = copy.deepcopy(net)
    with torch.no_grad():
        without_some.layer.lora_b[:, :3] = 0
    outputs = net.layer(x)
    weights = torch.randn(outputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = torch.func.grad(lambda x: (weights * without_some.layer(x)).sum())(x)
    net.layer.lora_detached = 3
    torch.testing.assert_close(net.layer(x), outputs, rtol=0, atol=0)
    gradient = torch.func.grad(lambda x: (weights * net.layer(x)).sum())(x)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_layers_with_adapters_by_hand() -> None:
    """LoRA adds 6 / 2 B A to the weight, IA3 rescales outputs, and a bottleneck follows its layer."""
    x = torch.randn(7, 5, dtype=torch.float64)
    for settings in (LORA, PlainAdapters(name="ia3"), BottleneckSettings(name="adapter", rank=2)):
        layer: Any = filled(build("mlp", (5,), 3, {"hidden": 4}, settings)).get_submodule("body.fc1")
        h = x @ layer.weight.T + layer.bias
        if settings.name == "lora":
            expected = h + 3 * x @ (layer.lora_b @ layer.lora_a).T
        elif settings.name == "ia3":
            expected = h * layer.ia3
        else:
            hidden = nn.functional.gelu(h @ layer.adapter_down.T + layer.adapter_down_bias)
            expected = h + hidden @ layer.adapter_up.T + layer.adapter_up_bias
        torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["lora", "ia3", "adapter", "bias_only"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_a_network_starts_as_it_is_without_adapters(model: str, name: str) -> None:
    """All other values are drawn as without adapters, and the adapters change no output yet."""
    shape = TokenShape(6, 20) if model == "transformer" else (1, 16, 16)
    plain, with_adapters = (build(model, shape, 3, {}, each) for each in (None, KINDS.validate_python({"name": name})))
    start, same = (initialise(net, generator("a", 1), torch.float64) for net in (plain, with_adapters))
    assert list(same) == [path for path, _ in (*with_adapters.named_parameters(), *with_adapters.named_buffers())]
    assert all(torch.equal(same[path], tensor) for path, tensor in start.items())
    x = torch.randint(20, (4, 6)) if model == "transformer" else torch.randn(4, 1, 16, 16, dtype=torch.float64)
    outputs = [functional_call(net.eval(), values, (x,)) for net, values in ((plain, start), (with_adapters, same))]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)


def test_a_is_drawn_as_pytorch_draws_a_layer_and_the_same_whichever_other_layers_have_one() -> None:
    nets = [
        build("mlp", (400,), 3, {"layers": 2}, LoraSettings(name="lora", rank=50, layers=layers))
        for layers in ((), ("fc2",))
    ]
    both, second = (initialise(net, generator("a", 1)) for net in nets)
    a = "body.fc2.lora_a"
    assert torch.equal(both[a], second[a])
    assert not torch.equal(both[a], both["body.fc1.lora_a"][:, :200])
    values = both["body.fc1.lora_a"]
    assert values.abs().max() <= 1 / 20 < 1.01 * values.abs().max()
    assert abs(float(values.std()) * 20 * 3**0.5 - 1) < 0.02
    assert not torch.equal(initialise(nets[0], generator("a", 2))[a], both[a])


class Attending(nn.Module):
    """PyTorch's own encoder layer, a depthwise convolution, and numbered layers."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(4, 4, 3, padding=1, groups=4)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.tail = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        self.head = nn.Linear(4, 3)


def chosen(settings: AdapterSettings, net: nn.Module | None = None) -> list[str]:
    """Names of the layers that get an adapter."""
    return [path for path, _, _ in adapters.adapted(adapters.insert(net or Attending().to("meta"), settings, "mine"))]


def test_layers_are_named_by_their_last_part_or_their_beginning() -> None:
    assert chosen(LORA) == ["encoder.linear1", "encoder.linear2", "tail.0", "tail.2"]
    for layers, expected in {
        ("linear1",): ["encoder.linear1"],
        ("encoder",): ["encoder.linear1", "encoder.linear2"],
        ("tail.2", "linear2"): ["encoder.linear2", "tail.2"],
    }.items():
        assert chosen(LORA.model_copy(update={"layers": layers})) == expected
    assert chosen(LORA.model_copy(update={"train": ()}))[-1] == "head"
    assert chosen(PlainAdapters(name="ia3"))[0] == "depthwise"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": ["fc1"]}, "no layer 'fc1' that lora fits; there are linear1, linear2, tail.0, tail.2$"),
        ({"layers": ["out_proj"]}, "'encoder.self_attn.out_proj' is read by nn.MultiheadAttention, which never"),
        ({"layers": ["depthwise"]}, "'depthwise' is a convolution in groups"),
        ({"layers": ["norm1"]}, "'encoder.norm1' is LayerNorm, not a linear or convolutional layer"),
        ({"layers": ["head"]}, "'head' is trained whole, as `train` says"),
        ({"train": ["haed"]}, "adapters.train: model 'mine' has no layer 'haed'; there are .*head"),
        ({"train": ["encoder", "tail", "head"]}, "no layer that lora fits, beside those of `train`"),
        ({"name": "bias_only", "layers": ["relu"]}, "no layer 'relu' that bias_only fits"),
    ],
)
def test_what_no_layer_can_take_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    settings = KINDS.validate_python({**({} if "name" in changes else LORA.model_dump()), **changes})
    with pytest.raises(UserError, match=words) as caught:
        chosen(settings)
    assert "\n" not in str(caught.value)


class ReadingWeights(nn.Module):
    """Computes with the weight of a layer, which is never called, and calls another."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8)
        self.head = nn.Linear(8, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.linear(x, self.query.weight, self.query.bias)).relu()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("theirs", [ReadingWeights], indirect=True)
def test_a_layer_that_is_never_called_gets_no_adapter() -> None:
    """It would train nothing; a bias that is trained needs no call."""
    for layers in ((), ("query",)):
        with pytest.raises(UserError, match=r"model 'theirs' never calls query: .* Name others by `layers`$"):
            build("theirs", (8,), 3, {}, LORA.model_copy(update={"layers": layers}))
    net = build("theirs", (8,), 3, {}, LORA.model_copy(update={"layers": ("out",)}))
    assert [path for path, _, _ in adapters.adapted(net)] == ["out"]
    assert adapters.frozen(build("theirs", (8,), 3, {}, PlainAdapters(name="bias_only")),
                           PlainAdapters(name="bias_only"), "theirs") == ("query.weight", "out.weight")  # fmt: skip


@pytest.mark.long
def test_models_of_the_package_call_every_layer_that_gets_an_adapter() -> None:
    count = 0
    for name, shape in itertools.product(MODELS.names(), ((3, 32, 32), (3, 128), TokenShape(16, 20))):
        try:
            net = build(name, shape, 3, {}, LORA).eval()
        except UserError:  # another kind of samples, no layer for adapters, or no model of the package
            continue
        waiting = {path for path, _, _ in adapters.adapted(net)}
        for path in list(waiting):
            net.get_submodule(path).register_forward_hook(lambda *_, path=path, waiting=waiting: waiting.discard(path))
        tokens = isinstance(shape, TokenShape)
        net(torch.zeros((2, shape[0]) if tokens else (2, *shape), dtype=torch.long if tokens else None, device="meta"))
        assert not waiting, name
        count += 1
    assert count > 15


def test_everything_is_frozen_but_adapters_and_what_train_names() -> None:
    net = adapters.insert(Attending().to("meta"), LORA.model_copy(update={"layers": ("linear1",)}), "mine")
    still = adapters.frozen(net, LORA.model_copy(update={"layers": ("linear1",)}), "mine")
    names = [path for path, _ in net.named_parameters()]
    moving = ["encoder.linear1.lora_a", "encoder.linear1.lora_b", "head.weight", "head.bias"]
    assert [name for name in names if name not in still] == moving
    assert set(still) <= set(names)


def test_bias_only_adds_nothing_and_trains_biases_of_norms_too() -> None:
    settings = PlainAdapters(name="bias_only", layers=("norm1", "tail"), train=())
    net = adapters.insert(Attending().to("meta"), settings, "mine")
    assert [path for path, _ in net.named_parameters()] == [path for path, _ in Attending().named_parameters()]
    moving = {path for path, _ in net.named_parameters()} - set(adapters.frozen(net, settings, "mine"))
    assert moving == {"encoder.norm1.bias", "tail.0.bias", "tail.2.bias"}


def test_running_statistics_of_a_norm_move_only_where_its_bias_is_trained() -> None:
    """A layer in training would change them in place, and frozen tensors are one copy for all models."""
    settings = PlainAdapters(name="bias_only", layers=("body.bn1",))
    net = build("resnet18", (3, 8, 8), 3, {}, settings)
    still = adapters.frozen(net, settings, "resnet18")
    assert not {"body.bn1.running_mean", "body.bn1.running_var", "body.bn1.bias"} & set(still)
    assert {"body.bn1.weight", "body.layer4.1.bn2.running_mean"} <= set(still)


def test_a_bottleneck_cannot_be_merged() -> None:
    net = filled(build("mlp", (5,), 3, {}, BottleneckSettings(name="adapter")))
    with pytest.raises(UserError, match="cannot be merged"):
        adapters.merged(net)


def test_pytorch_s_fast_path_does_not_pass_by_an_adapter() -> None:
    """Without gradients an encoder layer may compute itself in one operation, which calls no layer."""
    net: Any = filled(adapters.insert(Attending().to("meta"), LORA, "mine"), torch.float32)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 4))).float()
    with torch.no_grad():
        adapted = net.encoder(x)
        torch.testing.assert_close(adapted, adapters.merged(net).encoder(x), rtol=1e-4, atol=1e-5)  # type: ignore[operator]
        assert not torch.allclose(adapted, without(net).encoder(x))  # type: ignore[operator]


@pytest.mark.long
def test_layers_with_adapters_stay_what_they_are_on_a_gpu() -> None:
    """Convolutions for lanes know no adapters, and would leave them out."""
    net = filled(build("resnet18", (3, 8, 8), 3, {}, LORA.model_copy(update={"layers": ("conv2",)})))
    lanes = with_lanes(copy.deepcopy(net))
    assert isinstance(lanes.get_submodule("body.layer1.0.conv1"), LaneConvolution)
    assert list(lanes.state_dict()) == list(net.state_dict())
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        torch.testing.assert_close(lanes(x), net(x), rtol=1e-9, atol=1e-9)
