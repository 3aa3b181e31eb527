"""Weights out of a file: torchvision's networks predict here what they predict there, and frozen layers stay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bench.errors import UserError
from bench.models.factory import build
from bench.models.init import initialise
from bench.models.network import with_head
from bench.models.pretrained import match, pretrained
from bench.rng import generator
from bench.runs.plan import plan
from bench.settings import Settings
from tests.engine.problems import assert_same, toy
from tests.later import Later
from tests.models.helpers import filled

torchvision_models = Later("torchvision.models")


def saved(folder: Path, content: Any) -> str:
    torch.save(content, folder / "weights.pth")
    return str(folder / "weights.pth")


@pytest.mark.parametrize("name", [pytest.param("resnet18", marks=pytest.mark.long), "mobilenet_v3_small"])
def test_a_network_of_torchvision_is_the_same_here(name: str, tmp_path: Path) -> None:
    """Logits in float64, with running statistics that are not those of the beginning."""
    torch.manual_seed(0)
    theirs = torchvision_models.get_model(name, weights=None, num_classes=7).double()
    for buffer in theirs.buffers():
        buffer.add_(torch.rand_like(buffer, dtype=torch.float64).to(buffer.dtype))
    path = Path(saved(tmp_path, theirs.state_dict()))
    net = build(name, (3, 72, 72), 7)
    ours = filled(net, pretrained(path, net)).eval()
    x = torch.randn(2, 3, 72, 72, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs.eval()(x), rtol=0, atol=1e-9)
    with_other_classes = build(name, (3, 72, 72), 4)
    assert {"head.weight", "head.bias"} == set(with_other_classes.state_dict()) - set(
        pretrained(path, with_other_classes)
    )


Values = dict[str, torch.Tensor]


def older(values: Values) -> Values:
    """The order of torchvision's older files: statistics first within a layer, and no counters."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in values))
    names = [f"{layer}.{kind}" for layer in layers for kind in ("running_mean", "running_var", "weight", "bias")]
    return {name: values[name] for name in names if name in values}


def renamed(values: Values) -> Values:
    """Layers with other names, in their order."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in values))
    parts = {name: name.rpartition(".") for name in values}
    return {f"net.{layers.index(parts[name][0])}.{parts[name][2]}": value for name, value in values.items()}


def prefixed(values: Values, prefix: str = "module.") -> Values:
    return {f"{prefix}{name}": value for name, value in values.items()}


def shuffled(values: Values) -> Values:
    return dict(sorted(values.items(), key=lambda pair: pair[0][::-1]))


HEAD_OF_HUGGING_FACE = {"resnet.fc.weight": "classifier.weight", "resnet.fc.bias": "classifier.bias"}
WRITTEN: dict[str, Callable[[Values], Any]] = {
    "as it is": dict,
    "older": older,
    "module.": prefixed,
    "older, module.": lambda values: prefixed(older(values)),
    "any order": shuffled,
    "other names": renamed,
    "older, other names": lambda values: renamed(older(values)),
    "Hugging Face": lambda values: {
        HEAD_OF_HUGGING_FACE.get(name, name): value for name, value in prefixed(values, "resnet.").items()
    },
    "backbone., with more": lambda values: prefixed(values, "backbone.") | {"pooler.dense.weight": torch.zeros(3, 4)},
    "state_dict": lambda values: {"epoch": 3, "state_dict": prefixed(values)},
    "model": lambda values: {"model": values, "model_ema": shuffled(values), "optimizer": {"lr": 0.1}},
}


@pytest.mark.parametrize(("written", "classes"), [*((written, 10) for written in WRITTEN), ("older, module.", 7)])
def test_a_file_is_matched_by_names_whatever_its_order_and_prefix(written: str, classes: int, tmp_path: Path) -> None:
    """torchvision's ResNet-18, whose layers of equal shape tell wrong matches by their values."""
    theirs = torchvision_models.get_model("resnet18", weights=None, num_classes=10).state_dict()
    theirs = {
        name: torch.full_like(value, number, dtype=torch.float16) for number, (name, value) in enumerate(theirs.items())
    }
    net = build("resnet18", (3, 72, 72), classes)
    matched = pretrained(Path(saved(tmp_path, WRITTEN[written](theirs))), net)
    names = {name: name.replace("body.", "").replace("head.", "fc.") for name in net.state_dict()}
    wanted = {name: theirs[key] for name, key in names.items() if classes == 10 or not name.startswith("head.")}
    assert matched.keys() == wanted.keys()
    assert all(torch.equal(matched[name], value) for name, value in wanted.items())


LAYERS = {"hidden": 6, "layers": 2}


def test_a_cell_starts_with_the_values_of_the_file_and_further_draws_with_the_frozen_ones(tmp_path: Path) -> None:
    """In a cell's own precision; the file has half of it."""
    net = build("mlp", (4,), 3, LAYERS)
    halves = {name: value.half() for name, value in initialise(net, generator(5, "other")).items()}
    settings: dict[str, Any] = {"model": "mlp", "model_options": LAYERS, "pretrained": saved(tmp_path, halves)}
    server = toy("ditto", frozen=("body.fc1",), **settings).server
    assert_same(server.initial_model().tensors(), {name: value.double() for name, value in halves.items()}, 0)
    again = server.initial_model(draw=1).tensors()
    assert torch.equal(again["body.fc1.weight"], halves["body.fc1.weight"].double())
    assert not torch.equal(again["head.weight"], halves["head.weight"].double())


NET = ("mlp", (64,), 10, {"hidden": 200})
FITS = {"body.fc1.weight": torch.zeros(200, 64), "body.fc1.bias": torch.zeros(200)}
HEAD = {"head.weight": torch.zeros(10, 200), "head.bias": torch.zeros(10)}
WHOLE = FITS | HEAD
BAD: list[tuple[Any, str]] = [
    ([1, 2], "not a state dict; save `model.state_dict..`"),
    ({"optimizer": {"lr": 0.1}}, "not a state dict; save `model.state_dict..`"),
    (
        {"a.weight": FITS["body.fc1.weight"]},
        r"1 tensors for 4 of the model; the file has a.weight and the model b",
    ),
    (
        {f"{k}.{kind}": torch.zeros(2) for k in range(3) for kind in ("weight", "bias")},
        r"6 tensors for 4.*the file has 2.weight, 2.bias and the model no further tensor",
    ),
    (
        WHOLE | {"body.fc1.weight": torch.zeros(200, 64, dtype=torch.int8)},
        "body.fc1.weight holds torch.int8, and the model's body.fc1.weight floating numbers: save it unquantised",
    ),
    (
        {f"{whose}.{name}": value for whose in ("teacher", "student") for name, value in WHOLE.items()},
        "it has the model's tensors twice, under 'teacher.body.' and 'student.body.'; save one of them",
    ),
    (
        {"a.kernel": FITS["body.fc1.weight"], "a.bias": FITS["body.fc1.bias"]} | HEAD,
        "the file has a.kernel, a.bias and the model body.fc1.weight, body.fc1.bias in the same place",
    ),
    (WHOLE | {"body.fc1.weight": torch.zeros(100, 64)}, r"body.fc1.weight \(100, 64\) does not fit"),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_what_does_not_fit_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        match(Path(saved(tmp_path, content)), build(*NET))


def test_frozen_layers_that_are_none_or_all_are_refused(tmp_path: Path) -> None:
    for frozen, message in (
        (("layer1",), "has no layer 'layer1'; there are body.fc1, head and"),
        (("body", "head"), "nothing of model 'mlp' is left to train"),
    ):
        cell = Settings(method="fedavg", alpha=1.0, pretrained=saved(tmp_path, WHOLE), frozen=frozen)
        with pytest.raises(UserError, match=message):
            plan([cell], tmp_path, download=False)


def test_what_is_no_file_of_weights_of_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("weights")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    saved(tmp_path, WHOLE)
    for name, message in {
        "text.pth": "not a file of `torch.save`",
        "gone.pth": "there is no file of weights",
        "model.safetensors.index.json": "an index of several files, and one file is needed",
        "weights.pth": "is for model 'mlp', which `client_models` does not name",
    }.items():
        models = ("logistic", "cnn") if name == "weights.pth" else ()
        cell = Settings(method="fedavg", alpha=1.0, client_models=models, pretrained=str(tmp_path / name))
        with pytest.raises(UserError, match=message):
            plan([cell], tmp_path, download=False)


class Permuted(nn.Module):
    """Has a constant that its state dict has, too: a permutation of the inputs, drawn by its constructor."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(64))
        self.hidden = nn.Linear(64, 8)
        self.head = nn.Linear(8, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden(x.flatten(1)[:, self.order]).relu()  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("theirs", [Permuted], indirect=True)
def test_constants_of_the_file_are_those_of_the_model(tmp_path: Path) -> None:
    """They are compared, whatever type of whole numbers the file has; a file without them is taken."""
    net = build("theirs", (64,), 3)
    values = initialise(net, generator(5, "other"), constructed=lambda: Permuted((64,), 3).state_dict())
    for order in ({}, {"order": net.order}, {"order": net.order.to(torch.int32)}):  # type: ignore[union-attr]
        assert match(Path(saved(tmp_path, prefixed(values | order))), net).taken.keys() == values.keys()
    path = Path(saved(tmp_path, prefixed(values | {"order": torch.arange(64)})))
    with pytest.raises(UserError, match=r"its module.order differs from the model's order, which its const"):
        match(path, net)


DEEP = ("mlp", (4,), 3, {"hidden": 5, "layers": 12})


def numbered(rename: Callable[[str], str]) -> dict[str, torch.Tensor]:
    """Tensors of a network whose layers have one shape, each filled with its number; layers are fc1 to fc12."""
    parameters = build(*DEEP).named_parameters()
    return {rename(name): torch.full(p.shape, float(number)) for number, (name, p) in enumerate(parameters)}


@pytest.mark.parametrize("name", ["deep.safetensors", "sorted.pt"])
def test_order_overrides_no_name(name: str, tmp_path: Path) -> None:
    """One renamed layer of a file that is sorted by names, where layers of one shape follow as fc1, fc10, fc11."""
    values = dict(sorted(numbered(lambda name: name.replace("fc5.", "q.")).items()))
    (save_file if name.endswith("safetensors") else torch.save)(values, tmp_path / name)
    missing = "24 of 26 tensors .*, but not body.fc5.weight, body.fc5.bias, "
    with pytest.raises(UserError, match=missing):
        match(tmp_path / name, build(*DEEP))
    torch.save(numbered(lambda name: name.replace("fc5.", "q.")), tmp_path / "in_order.pt")
    matched = pretrained(tmp_path / "in_order.pt", build(*DEEP))
    assert all(torch.equal(matched[name], value) for name, value in numbered(str).items())
    assert match(tmp_path / "in_order.pt", build(*DEEP)).by_order == ("body.fc5.weight", "body.fc5.bias")


@pytest.mark.parametrize("name", ["deep.safetensors", "sorted.pt"])
def test_layers_of_one_shape_are_not_told_by_the_alphabet(name: str, tmp_path: Path) -> None:
    """All layers have other names; those of a file with different shapes are told by these."""
    write = save_file if name.endswith("safetensors") else torch.save
    write(dict(sorted(numbered(lambda name: name.replace("fc", "z")).items())), tmp_path / name)
    with pytest.raises(UserError, match=r"such as body.fc1.weight, .* does not tell layers of one shape apart"):
        match(tmp_path / name, build(*DEEP))
    others = {name.replace("body.fc1", "a").replace("head", "b"): value for name, value in WHOLE.items()}
    write(dict(sorted(others.items())), tmp_path / name)
    assert match(tmp_path / name, build(*NET)).taken == dict(zip(WHOLE, others, strict=True))


def test_what_is_taken_reset_and_left(tmp_path: Path) -> None:
    """A file without a head, one with more, and one of another number of classes."""
    for content, reset, left in (
        (FITS, set(HEAD), set()),
        (WHOLE | {"aux.weight": torch.zeros(2)}, set(), {"aux.weight"}),
        (FITS | {"head.weight": torch.zeros(7, 200), "head.bias": torch.zeros(7)}, set(HEAD), set(HEAD)),
        ({"body.fc1.weight": FITS["body.fc1.weight"]} | HEAD, {"body.fc1.bias"}, set()),
    ):
        matched = match(Path(saved(tmp_path, content)), build(*NET))
        assert set(matched.reset) == reset
        assert set(matched.left) == left
        assert set(matched.taken) == set(WHOLE) - reset


def test_notes_say_what_of_the_body_is_drawn_and_what_is_matched_by_its_order(tmp_path: Path) -> None:
    missing = {"body.fc1.weight": FITS["body.fc1.weight"]} | HEAD
    other_names = {name.replace("body.fc1", "a"): value for name, value in WHOLE.items()}
    for values, note in (
        (missing, "model 'mlp' has body.fc1.bias, which the file has not; drawn by seed"),
        (
            other_names,
            "the file has body.fc1.weight, body.fc1.bias of model 'mlp' under other names; its layers are taken in the "
            "file's order",
        ),
    ):
        path = saved(tmp_path, values)
        cell = Settings(method="fedavg", alpha=1.0, model_options={"hidden": 200}, pretrained=path)
        [planned] = plan([cell], tmp_path, download=False)
        assert [text for text in planned.notes if "pretrained" in text] == [f"pretrained {path}: {note}"]


def test_the_tower_that_fits_is_taken(tmp_path: Path) -> None:
    """Of two with the same names, the one whose shapes are the model's; and the model's names may go on before."""
    text = {"text.fc1.weight": torch.zeros(50, 9), "text.fc1.bias": torch.zeros(50)}
    vision = {"vision.fc1.weight": torch.ones(200, 64), "vision.fc1.bias": torch.ones(200)}
    values = pretrained(Path(saved(tmp_path, text | vision)), build(*NET))
    assert set(values) == set(FITS)
    assert all(bool((value == 1).all()) for value in values.values())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_safetensors_are_read(kind: torch.dtype, tmp_path: Path) -> None:
    values = {name: torch.randn(value.shape, dtype=kind) for name, value in WHOLE.items()}
    save_file(values, tmp_path / "model.safetensors")
    assert_same(pretrained(tmp_path / "model.safetensors", build(*NET)), values, 0)
    (tmp_path / "damaged.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:100])
    with pytest.raises(UserError, match="not a file of safetensors"):
        pretrained(tmp_path / "damaged.safetensors", build(*NET))


def test_names_of_hugging_face_s_files_are_those_of_its_networks(tmp_path: Path) -> None:
    """`save_pretrained` writes names of older versions: each tensor is where the library itself would load it."""
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = library.ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    kinds = [
        (library.ViTForImageClassification, 0, 3),
        (library.ViTModel, 2, 3),
        (library.ViTForImageClassification, 2, 5),
    ]
    net = with_head(library.ViTForImageClassification(config), "classifier")
    for kind, drawn, classes in kinds:
        config.num_labels = classes
        theirs = kind(config)
        theirs.save_pretrained(tmp_path)
        path = tmp_path / "model.safetensors"
        found, values = match(path, net), pretrained(path, net)
        expected = theirs.state_dict()
        assert (len(found.reset), found.by_order) == (drawn, ())
        for name, value in values.items():
            stored = name.replace("head.", "classifier.").removeprefix("body.")
            assert torch.equal(value, expected.get(stored, expected.get(stored.removeprefix("vit."))))
