"""Exported models: a list of torch's operations that computes what the network did; a file of it runs nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.errors import UserError
from bench.exported import ExportedModel, exported, load_model
from bench.operations import NotExportable, Recording

HEADER: dict[str, Any] = {
    "site": "Bonn", "classes": ["no", "yes"], "cell": {"id": "0", "name": "c", "method": "m", "round": 1},
    "shape": [1, 8, 8], "needs_site": False, "table": None,
}  # fmt: skip


class Small(nn.Module):
    """Convolution, BatchNorm with statistics, and a reshape by the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(108, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().flatten(1))


class Recurrent(nn.Module):
    """A layer that keeps its tensors in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.layer(x.view(len(x), 8, 8))
        return self.head(out[:, -1])


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    small = Small()
    small(torch.randn(32, 1, 8, 8))  # statistics that are not 0 and 1
    return small.eval()


@pytest.fixture(scope="module")
def model(network: nn.Module) -> ExportedModel:
    normalisation = [torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in (3.0, 2.0)]
    example = torch.randn(4, 1, 8, 8)
    return exported(network, example, normalisation=normalisation, bf16=False, header=HEADER)


class Counting(Small):
    """The number of samples is a plain number to it, which torch then takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().view(len(x), 108))


@pytest.mark.long
def test_a_network_that_counts_its_samples() -> None:
    network = Counting().eval()
    written = exported(network, torch.randn(4, 1, 8, 8), normalisation=[], bf16=False, header=HEADER)
    x = torch.randn(9, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(written(x), network(x))


class Mixing(Small):
    """Outputs of a sample depend on the other samples."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0) * len(x))


def test_a_network_whose_samples_are_not_independent_is_refused() -> None:
    with pytest.raises(NotExportable, match="other outputs"):
        exported(Mixing().eval(), torch.randn(4, 1, 8, 8), normalisation=[], bf16=False, header=HEADER)


@pytest.mark.long
def test_a_recurrent_layer_of_torch_s_own() -> None:
    network = Recurrent().eval()
    written = exported(network, torch.randn(4, 1, 8, 8), normalisation=[], bf16=False, header=HEADER)
    x = torch.randn(9, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(written(x), network(x))


def test_a_file_computes_what_the_network_did(network: nn.Module, model: ExportedModel, tmp_path: Path) -> None:
    """For any number of samples, none among them; and without unpickling anything but tensors and plain values."""
    model.save(tmp_path / "m.pt")
    torch.load(tmp_path / "m.pt", weights_only=True)
    loaded = load_model(tmp_path / "m.pt")
    assert (loaded.site, loaded.classes) == ("Bonn", ["no", "yes"])
    for n in (0, 1, 7, 501):
        x = torch.randn(n, 1, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), network((x - 3) / 2) if n else torch.zeros(0, 2))


def test_samples_of_another_shape_are_refused(model: ExportedModel) -> None:
    with pytest.raises(UserError, match=r"\[1, 9, 8\].*\[1, 8, 8\]"):
        model(torch.zeros(2, 1, 9, 8))


def test_values_on_another_scale_are_refused(network: nn.Module) -> None:
    """A model of bytes takes no pictures from 0 to 1: all would be of one class, without a word."""
    example = torch.randn(4, 1, 8, 8)
    normalisation = [torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in (120.0, 60.0)]
    of_bytes = exported(network, example, normalisation=normalisation, bf16=False, header=HEADER | {"bytes": True})
    assert of_bytes(torch.full((2, 1, 8, 8), 200, dtype=torch.uint8)).shape == (2, 2)
    with pytest.raises(UserError, match="takes whole numbers from 0 to 255"):
        of_bytes(torch.rand(2, 1, 8, 8))
    of_tokens = exported(network, example, normalisation=normalisation, bf16=False, header=HEADER | {"vocabulary": 50})
    assert of_tokens(torch.full((2, 1, 8, 8), 49)).shape == (2, 2)
    for x, said in (
        (torch.full((2, 1, 8, 8), 50), "tokens from 50 to 50: the model has a vocabulary of 50"),
        (torch.full((2, 1, 8, 8), -1), "tokens from -1 to -1"),
        (torch.rand(2, 1, 8, 8), "takes tokens, which are whole numbers"),
    ):
        with pytest.raises(UserError, match=said):
            of_tokens(x)


class Scaled(Small):
    """A network with a number that is neither a parameter nor a buffer."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


def test_networks_of_one_computation_are_recorded_once() -> None:
    """With each its own tensors; networks that compute something else have a recording of their own."""
    networks = [Scaled(1.0).eval(), Scaled(1.0).eval(), Scaled(2.0).eval(), Scaled(1.0).eval()]
    with torch.no_grad():
        networks[3].norm.running_mean += 1.0  # type: ignore[operator, union-attr]
    x, recordings = torch.randn(9, 1, 8, 8), list[Recording]()
    for network, count in zip(networks, (1, 1, 2, 2), strict=True):
        written = exported(
            network, x[:4], normalisation=[], bf16=False, header=HEADER, recordings=recordings
        )  # fmt: skip
        assert len(recordings) == count
        with torch.no_grad():
            torch.testing.assert_close(written(x), network(x))


class Choosing(nn.Module):
    """A network whose computation depends on the samples' values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if x.sum().item() > 0 else -self.head(x)


def test_a_network_that_is_no_list_of_operations_is_refused() -> None:
    with pytest.raises(NotExportable, match="no fixed list"):
        exported(Choosing().eval(), torch.randn(4, 2), normalisation=[], bf16=False, header=HEADER)


@pytest.mark.parametrize(
    "operation", ["aten.from_file.default", "os.system", "operator.attrgetter", "aten.linear", "aten.none.default", 3]
)
def test_a_file_that_asks_for_anything_else_is_refused(model: ExportedModel, operation: object, tmp_path: Path) -> None:
    """Before any of it runs; `from_file` is an operation of torch that opens files."""
    model.save(tmp_path / "m.pt")
    content = torch.load(tmp_path / "m.pt", weights_only=True)
    header = json.loads(content["header"])
    header["operations"].insert(1, {"op": operation, "name": "n", "args": ["touched", True, 1], "kwargs": {}})
    torch.save({**content, "header": json.dumps(header)}, tmp_path / "forged.pt")
    with pytest.raises(UserError, match="no operation of torch"):
        load_model(tmp_path / "forged.pt")


@pytest.mark.parametrize("content", [b"", b"no file of torch", None, "folder"])
def test_what_is_no_model_is_refused_in_a_line(content: bytes | str | None, tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    if content == "folder":
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"m\.pt") as refused:
        load_model(file)
    assert "\n" not in str(refused.value)


def test_a_damaged_file_and_one_of_another_kind_are_refused(model: ExportedModel, tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="bench export"):
        load_model(tmp_path / "other.pt")
    model.save(tmp_path / "m.pt")
    content = torch.load(tmp_path / "m.pt", weights_only=True)
    torch.save({**content, "pfleague_model": 99}, tmp_path / "later.pt")
    with pytest.raises(UserError, match="99"):
        load_model(tmp_path / "later.pt")
    (tmp_path / "half.pt").write_bytes((tmp_path / "m.pt").read_bytes()[:3000])
    with pytest.raises(UserError, match="damaged"):
        load_model(tmp_path / "half.pt")
