"""Models as people write them: bare parameters, attention, encoders, other packages' networks, nested names."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bench
from bench.config.identity import cell_id
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.models.factory import build, initial_values
from bench.models.network import with_head
from bench.models.packages import FeaturePool
from bench.models.trial import goes_side_by_side
from bench.params import Spec
from bench.plugin import MODELS
from bench.results.results import CellView
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.settings import Settings
from tests.conftest import ROOT
from tests.engine.problems import assert_same, everything, run, toy_partition
from tests.models.helpers import filled, pictures

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of cohorts with torch's attention

FILE = ROOT / "docs" / "examples" / "own_models.py"
OWN = ["class_token", "attention", "encoder", "hugging_face_like", pytest.param("shuffle", marks=pytest.mark.long)]
LARGE = {"shuffle": 32, "torchvision/shufflenet_v2_x0_5": 32}
SIZES = [9, 6, 5]


@pytest.fixture(autouse=True)
def _registered() -> None:
    bench.load_file(FILE)


def federation(model: str, executor: Any, **settings: Any) -> Federation:
    data = pictures(LARGE.get(model, 8), 3 if "/" in model else 1)
    chosen: dict[str, Any] = {"dtype": "float64", "batch_size": 4, "lr": 0.1, "seed": 3, "clients": 3, **settings}
    return Federation(
        Settings(method="fedavg", model=model, **chosen), dataset=data, partition=toy_partition(data, SIZES),
        executor=executor, public=None,
    )  # fmt: skip


@pytest.mark.parametrize("model", [*OWN, pytest.param("torchvision/shufflenet_v2_x0_5", marks=pytest.mark.long)])
def test_the_same_bytes_whatever_ran_before_and_alike_in_both_executors(model: str) -> None:
    """Draws of constructors depend on their address, and leave the global generators and types as they are."""
    states: dict[str, list[dict[str, Tensor]]] = {"cohort": [], "sequential": []}
    for executor, before in itertools.product(states, (1, 2)):
        torch.manual_seed(before), np.random.seed(before)
        cell, following = federation(model, executor, lr=0.001), torch.rand(3)
        torch.manual_seed(before)
        assert torch.equal(following, torch.rand(3))
        run(cell, 1)
        states[executor].append(everything(cell))
    for first, second in states.values():
        assert_same(first, second, 0)
    assert_same(states["cohort"][0], states["sequential"][0])
    assert torch.get_default_dtype() == torch.float32


def drawn(model: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    given: tuple[str, tuple[int, ...], int, dict[str, Any]] = (model, (1, 8, 8), 3, {})
    return initial_values(build(*given), *given, ("initial", seed, model, 0), dtype)


def test_initial_values_are_the_constructor_s_by_seed() -> None:
    values, again, other = drawn("attention"), drawn("attention"), drawn("attention", seed=1)
    weight = values["attention.in_proj_weight"]
    bound = math.sqrt(6 / (8 + 24))  # Glorot and Bengio 2010, eq. 16, as torch draws it
    assert 0.9 * bound < weight.abs().max() <= bound
    assert not values["attention.out_proj.bias"].any()
    assert all(torch.equal(values[name], again[name]) for name in values)
    assert not torch.equal(weight, other["attention.in_proj_weight"])
    rounded = drawn("attention", dtype=torch.float32)
    assert all(torch.equal(values[name].float(), rounded[name]) for name in values)
    positions = drawn("class_token")["positions"]
    assert 0.01 < positions.std() < 0.03


class Plain(nn.Module):
    """A linear network with a constructor of its own taste."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(math.prod(shape), 4)
        self.head = nn.Linear(4, classes)
        nn.init.constant_(self.inner.weight, 0.25)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def changed(features: Callable[[Any, Tensor], Tensor] = Plain.features, **attributes: Callable[[], Any]) -> type[Plain]:
    """The network `Plain` with other features or attributes."""

    class Changed(Plain):
        def __init__(self, shape: tuple[int, ...], classes: int) -> None:
            super().__init__(shape, classes)
            for name, make in attributes.items():
                setattr(self, name, make())

        def features(self, x: Tensor) -> Tensor:
            return features(self, x)

    return Changed


def last_state(net: Any, x: Tensor) -> Any:
    return net.inner(x.mean(1))[0][:, -1]


def by_sign(net: Any, x: Tensor) -> Any:
    z = net.inner(x.flatten(1))
    return z if z.mean() > 0 else -z


ALONE = {
    "vmap does not know torch's LSTM": changed(last_state, inner=lambda: nn.LSTM(8, 4, batch_first=True)),
    "only a gradient of a GRU goes": changed(last_state, inner=lambda: nn.GRU(8, 4, batch_first=True)),
    "a decision by a number": changed(by_sign),
}


@pytest.mark.parametrize("theirs", ALONE.values(), ids=ALONE, indirect=True)
def test_what_does_not_go_side_by_side_goes_alone() -> None:
    cell = federation("theirs", "auto", dtype="float32")
    start = cell.server.initial_model().weights
    run(cell, 1)
    assert not torch.equal(everything(cell)["server/0"][:100], start[:100])  # the recurrent layer is trained
    assert build("theirs", (1, 8, 8), 3).better_alone
    assert not getattr(build("class_token", (1, 8, 8), 3), "better_alone", False)


class AsConstructed(Plain):
    rules = None


def scaled(net: Any, x: Tensor) -> Tensor:
    return net.scale * Plain.features(net, x)  # type: ignore[no-any-return]


WithScale = changed(scaled, scale=lambda: nn.Parameter(torch.full((4,), 0.5)))


@pytest.mark.parametrize(
    ("theirs", "constructed"), [(Plain, False), (AsConstructed, True), (WithScale, True)], indirect=["theirs"]
)
def test_rules_hold_where_all_layers_have_one(constructed: bool) -> None:
    """And where none is left without; cells of earlier versions keep their numbers."""
    assert bool((drawn("theirs")["inner.weight"] == 0.25).all()) == constructed


def test_constants_are_no_part_of_a_model_value() -> None:
    spec = Spec.of("attention", build("attention", (1, 8, 8), 3))
    assert spec.buffers == ()
    for dtype in (torch.float32, torch.float64):
        with torch.inference_mode():  # as in an evaluation before the first training
            table = spec.constants(torch.device("cpu"), dtype)["table"]
        assert not table.is_inference()
        assert table.dtype == dtype
        torch.testing.assert_close(table, torch.linspace(-1, 1, 8, dtype=dtype)[:, None], rtol=1e-6, atol=0)
    named = Spec.of("named", build("hugging_face_like", (1, 8, 8), 3))
    assert named.constants(torch.device("cpu"), torch.float64)["body.position_ids"].tolist() == list(range(8))
    assert {entry.name.partition(".")[0] for entry in named.params} == {"body", "head"}
    assert {e.name for e in named.params if e.under(("head",))} == {
        f"head.{layer}.{kind}" for layer in ("dense", "out_proj") for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("model", ["attention", "encoder"])
def test_attention_rounds_alike_with_and_without_gradients(model: str) -> None:
    torch.backends.mha.set_fastpath_enabled(True)  # as in a new process
    net = filled(build(model, (1, 8, 8), 3), drawn(model, dtype=torch.float32)).eval()
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        without = net(x)
    assert without.numpy().tobytes() == net(x).detach().numpy().tobytes()


class Tracking(Plain):
    """Takes a running mean of its own away in evaluation, and the batch's in training; it is changed in place."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        self.register_buffer("mean", torch.zeros(4))

    def features(self, x: Tensor) -> Tensor:
        hidden = self.inner(x.flatten(1) + 1)
        if self.training:
            self.move(hidden.mean(0).detach())
        return hidden - (hidden.mean(0) if self.training else self.mean)  # type: ignore[no-any-return]

    def move(self, mean: Tensor) -> None:
        self.mean.mul_(0.9).add_(0.1 * mean)


class Assigning(Tracking):
    """The same, with a new tensor for each value."""

    def move(self, mean: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * mean


@pytest.mark.parametrize("theirs", [Tracking], indirect=True)
def test_statistics_of_a_model_s_own_are_those_of_real_samples_in_place_or_not() -> None:
    """Short batches are not padded, one client after the other or side by side. Such statistics mix samples."""
    states = []
    for model, executor in itertools.product((Tracking, Assigning), ("sequential", "cohort")):
        MODELS._items["theirs"] = model
        trained = federation("theirs", executor)
        run(trained, 2)
        states.append(everything(trained))
        assert states[-1]["server/1"].all()  # the server's statistics have moved
        assert_same(states[-1], states[0])
    with pytest.raises(UserError, match="dp_sgd: a network has batch statistics, which mix the samples of a batch"):
        run(federation("theirs", "cohort", dp_sgd={"noise": 1.0}), 1)


class Turning(Plain):
    """Rotates pairs of numbers by fixed angles, as rotary positions do: a complex constant."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        self.inner = nn.Linear(math.prod(shape), 16)
        self.head = nn.Linear(16, classes)
        angles = torch.arange(8, dtype=torch.float64) + 1
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def features(self, x: Tensor) -> Tensor:
        real, imaginary = super().features(x).chunk(2, dim=1)
        return torch.view_as_real(torch.complex(real, imaginary) * self.turns).flatten(1)


@pytest.mark.long
@pytest.mark.parametrize("theirs", [Turning], indirect=True)
def test_a_kept_model_has_complex_constants(tmp_path: Path) -> None:
    settings = Settings(method="fedavg", model="theirs", alpha=1.0, clients=4, rounds=2, lr=0.1)
    status = run_cell(settings, tmp_path, Options(device="cpu", executor="sequential", keep="best"))
    view = CellView("cell", "fedavg", settings, tmp_path, status)
    kept, data = view.model(), bench.load_dataset(settings)
    assert kept.network.turns.dtype == torch.complex64
    with torch.no_grad():
        predicted = kept(torch.from_numpy(data.x[data.n_train :])).argmax(1).numpy()
    figures = view.table("metrics").query("metric == 'gm' and split == 'test' and on == 'global'")
    figures = figures[(figures["quantity"] == "accuracy") & (figures["round"] == kept.round)]
    assert (predicted == data.y[data.n_train :]).mean() == pytest.approx(figures["value"].item(), abs=1e-9)


# -- mistakes, each refused before anything runs ---------------------------------------------------------------------


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return z + torch.empty_like(z).exponential_() if self.training else z


class Tied(Plain):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        self.again = nn.Linear(4, classes)
        self.again.weight = self.head.weight


class Counting(Plain):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def features(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().features(x)


class Derived(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.lora_A = nn.Parameter(torch.zeros(2, 4))


Still = changed(inner=lambda: nn.Linear(64, 4).requires_grad_(False))


class Headless(nn.Sequential):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), 4), nn.Linear(4, classes))


class MethodHead(Headless):
    """A head that is a method."""

    def features(self, x: Tensor) -> Tensor:
        return x

    def head(self, z: Tensor) -> Tensor:
        return self(z)  # type: ignore[no-any-return]


class LogLikelihoods(Headless):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


class Vggish(nn.Module):
    """The parts of torchvision's VGG and AlexNet: `features`, and a head that is the last layer of `classifier`."""

    def __init__(self, shape: tuple[int, ...], classes: int, *after: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Sequential(nn.Linear(12, 4), nn.ReLU(inplace=True), nn.Linear(4, classes), *after)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return out


class OfImages(nn.Sequential):
    """A head that is a convolution, as in SqueezeNet."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Conv2d(shape[0], classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Twice(Headless):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x) + super().forward(-x)
        return out


def clipped(net: Any, x: Tensor) -> Tensor:
    """Bounds weights where they are used, as a Wasserstein critic does."""
    net.inner.weight.data.clamp_(-0.01, 0.01)
    return Plain.features(net, x)


def rescaled(net: Any, x: Tensor) -> Tensor:
    """Gives the network a parameter of unit length."""
    net.inner.weight = nn.Parameter(nn.functional.normalize(net.inner.weight))
    return Plain.features(net, x)


class Functional(nn.Module):
    """Uses the weight of its last layer without calling the layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.last.weight.T


def cut(kind: Callable[..., nn.Module], head: str, *after: nn.Module) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The network of a kind with a head of a name, which other layers may follow."""
    return lambda shape, classes: with_head(kind(shape, classes, *after), head)


MISTAKES = [
    (changed(inner=lambda: Noisy(64, 4)), r"draws random numbers by exponential_ in training"),
    (Tied, r"has '(head|again).weight' under another name, too"),
    (
        changed(scale=lambda: torch.ones(4)),
        r"has the tensor 'scale' as a plain attribute.*register_buffer\('scale', ..., persistent=False\)",
    ),
    (Counting, r"changes its buffer 'calls' in training"),
    (
        changed(rows=lambda: nn.Embedding(2, 4, max_norm=1.0)),
        r"shortens rows of its parameter 'rows.weight'.* leave max_norm out",
    ),
    (changed(clipped), r"changes its parameter 'inner.weight' in its forward pass"),
    (changed(rescaled), r"changes its parameter 'inner.weight' in its forward pass"),
    (
        changed(norm=lambda: nn.BatchNorm1d(4, momentum=None)),
        r"layer 'norm' \(BatchNorm1d\) has momentum=None, .*: give it a number",
    ),
    (changed(late=lambda: nn.LazyLinear(4)), r"has 'late.weight' of unknown shape, in a lazy layer"),
    (changed(derived=Derived), r"'derived.lora_A' is no tensor of Linear.*`rules = None`"),
    (Still, r"inner.weight, inner.bias need no gradient.*`frozen: \[inner\]`"),
    (Headless, r"needs `features` and `head`.*bench.with_head\(net, 'NAME OF ITS LAST LAYER'\)"),
    (MethodHead, r"no parameters named `head\.\*`"),
    (cut(Headless, "3"), r"with_head: Headless has no layer '3' with parameters.* The last linear layers are 1, 2"),
    (cut(Headless, "0"), r"has no layer '0' with parameters"),
    (cut(Headless, "1"), r"is cut at '1', and its logits are not what .* last layer"),
    (cut(Vggish, "classifier.2", nn.ReLU()), r"cut at 'classifier.2', and its logits are not"),
    (cut(Vggish, "classifier.2", nn.Identity(), nn.Softmax(1)), r"cut at 'classifier.2', and"),
    (cut(Vggish, "classifier.2", nn.BatchNorm1d(10)), r"cut at 'classifier.2', and"),
    (cut(OfImages, "0"), r"cut at '0', and its logits are not"),
    (cut(LogLikelihoods, "2"), r"is cut at '2', and its logits are not"),
    (cut(Twice, "2"), r"is cut at '2', .* which the network calls once"),
    (cut(Functional, "last"), r"is cut at 'last', and its logits are not"),
]


@pytest.mark.parametrize(("theirs", "words"), MISTAKES, indirect=["theirs"])
def test_mistakes_are_refused_before_the_first_cell(words: str, tmp_path: Path) -> None:
    cell = Settings(method="fedavg", alpha=1.0, model="theirs")
    with pytest.raises(UserError, match=words) as refusal:
        plan([cell], tmp_path, download=False)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("theirs", [Still], indirect=True)
def test_what_needs_no_gradient_may_be_frozen(tmp_path: Path) -> None:
    plan([Settings(method="fedavg", alpha=1.0, model="theirs", frozen=("inner",))], tmp_path, download=False)


@pytest.mark.parametrize("theirs", [cut(Vggish, "classifier.2", nn.Identity())], indirect=True)
def test_the_head_may_be_the_last_layer_of_a_sequence_inside() -> None:
    """Logits and names are those of the network as it was, and such cells run, in whole and with a frozen body."""
    spec = Spec.of("theirs", build("theirs", (1, 8, 8), 3))
    assert [entry.name for entry in spec.params] == [
        "body.features.0.weight", "body.features.0.bias", "body.classifier.0.weight", "body.classifier.0.bias",
        "head.weight", "head.bias",
    ]  # fmt: skip
    states = []
    for executor in ("cohort", "sequential"):
        cell = federation("theirs", executor)
        run(cell, 1)
        states.append(everything(cell))
    assert_same(*states)
    frozen = federation("theirs", "cohort", frozen=("body",))
    assert frozen.server.initial_model().weights.numel() == 3 * 4 + 3


@pytest.mark.parametrize("executor", ["cohort", "sequential"])
def test_a_body_with_constants_can_be_frozen(executor: str) -> None:
    cell = federation("hugging_face_like", executor, frozen=("body",))
    start = cell.server.initial_model()
    assert {entry.name.partition(".")[0] for entry in start.spec.params} == {"head"}
    run(cell, 1)
    assert not torch.equal(everything(cell)["server/0"], start.weights)


# -- other packages' networks by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "vit_b_16", "densenet121"])
@pytest.mark.long
def test_torchvision_s_networks_are_theirs(name: str) -> None:
    """Same numbers of parameters, logits of the cut network are those of the whole one, and names are kept."""
    from torchvision.models import get_model

    options: dict[str, Any] = {"vit_b_16": {"image_size": 32}, "vgg11": {"dropout": 0.0}}.get(name, {})
    with torch.device("meta"):
        theirs = get_model(name, weights=None, num_classes=7, **options)
    net = build(f"torchvision/{name}", (3, 32, 32), 7, options)
    expected = {key for key, _ in theirs.named_parameters()}
    place = net.place
    named = {path.replace("head.", f"{place}.", 1).removeprefix("body.") for path, _ in net.named_parameters()}
    assert named == expected


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_pooled_features_are_torch_s(features: int, width: int) -> None:
    x = torch.from_numpy(np.random.default_rng(features).normal(size=(3, features))).requires_grad_()
    ours, theirs = FeaturePool(width)(x), nn.AdaptiveAvgPool1d(width)(x)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.arange(1.0, width + 1, dtype=x.dtype)
    gradients = [torch.autograd.grad((out * weights).sum(), x)[0] for out in (ours, theirs)]
    assert torch.allclose(*gradients, rtol=0, atol=1e-12)


@pytest.mark.long
def test_a_network_of_torchvision_with_pooled_features() -> None:
    """Its features have the width, the head is linear of that width, and the rest is the network's own."""
    plain, pooled = (build(f"torchvision/shufflenet_v2_x0_5{colon}", (3, 32, 32), 7) for colon in ("", ":96"))
    sizes = [{path: p.shape for path, p in net.named_parameters()} for net in (plain, pooled)]
    assert {path: shape for path, shape in sizes[0].items() if path.startswith("body.")} == {
        path: shape for path, shape in sizes[1].items() if path.startswith("body.")
    }
    assert {path: tuple(shape) for path, shape in sizes[1].items() if path.startswith("head.")} == {
        "head.weight": (7, 96), "head.bias": (7,)
    }  # fmt: skip
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 32, 32))).float()
    values = initial_values(pooled, "torchvision/shufflenet_v2_x0_5:96", (3, 32, 32), 7, None, (0, "weights"))
    net = filled(pooled, values).eval()
    assert net.features(x).shape == (2, 96)
    assert goes_side_by_side(net.train(), x)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2"])
@pytest.mark.long
def test_networks_with_pooled_features_keep_their_dropout(name: str) -> None:
    net = build(f"torchvision/{name}:512", (3, 32, 32), 7)
    assert any(isinstance(layer, nn.Dropout) and layer.p == 0.2 for layer in net.modules())
    assert net.draws_in_training


NOT_BUILT = [
    ("torchvision/resnet18:wide", {}, (3, 32, 32), "the width after the colon is a number of features"),
    ("torchvision/resnet18:0", {}, (3, 32, 32), "the width after the colon is a number of features"),
    ("torchvision/resnet81:512", {}, (3, 32, 32), "has no network 'resnet81'. Did you mean 'resnet18'"),
    ("torchvision/resnet18", {}, (1, 32, 32), "needs images of 3 channels"),
    ("torchvision/resnet18", {}, (64,), "needs images"),
    ("torchvision/resnet18", {"num_classes": 3}, (3, 32, 32), "leave out the option 'num_classes'"),
    ("torchvision/resnet18", {"width": 3}, (3, 32, 32), "unexpected keyword argument 'width'; see `model_options`"),
    ("torchvision/squeezenet1_0", {"dropout": 0.0}, (3, 32, 32), "has no linear layer"),
    ("nothing_there/resnet18", {}, (3, 32, 32), "unknown model 'nothing_there/resnet18'"),
]


@pytest.mark.parametrize(("name", "options", "shape", "words"), NOT_BUILT)
def test_what_cannot_be_built_is_said(name: str, options: dict[str, Any], shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(name, shape, 3, options)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the grid's reader, which needs neither data nor torch."""
    MODELS.names()
    monkeypatch.setitem(MODELS._items, "no_such_package/*", MODELS.get("timm/*"))
    with pytest.raises(UserError, match="the package no_such_package is not installed: pip install no_such_package"):
        bench.load_grid({"methods": ["fedavg"], "alphas": [1.0], "model": "no_such_package/net"})


def test_the_package_s_version_is_part_of_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Settings(method="fedavg", model="torchvision/resnet18")
    ids = []
    for version in ("0.29.2+cpu", "0.29.2+cu130", "0.30.0"):
        monkeypatch.setattr("importlib.metadata.version", lambda _, version=version: version)
        ids.append(cell_id(cell, ""))
    assert ids[0] == ids[1] != ids[2]
    assert cell_id(Settings(method="fedavg", model="resnet18"), "") != ids[0]


@pytest.mark.long
def test_timm_by_name() -> None:
    pytest.importorskip("timm")
    net = build("timm/vit_tiny_patch16_224", (3, 32, 32), 5, {"img_size": 32, "depth": 2})
    spec = Spec.of("vit", net)
    assert {e.name for e in spec.params if e.under(("head",))} == {"head.weight", "head.bias"}
    assert "body.pos_embed" in {e.name for e in spec.params}
    with pytest.raises(UserError, match=r"has no network 'vit_tiny_patch16_225'. Did you mean 'vit_tiny_patch16_224'"):
        build("timm/vit_tiny_patch16_225", (3, 32, 32), 5)
    with pytest.raises(UserError, match=r"does not take samples of shape .3, 32, 32.: AssertionError: Input height"):
        build("timm/vit_tiny_patch16_224", (3, 32, 32), 5, {"depth": 1})
