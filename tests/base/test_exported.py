"""Exported models: a list of torch's operations that computes what the network did; a file of it runs nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
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


def export(network: nn.Module, *moments: float, **options: Any) -> ExportedModel:
    """The exported network; with a mean and a standard deviation it normalises. Options that are no header's go on."""
    normalisation = [torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in moments]
    recordings = {"recordings": options.pop("recordings")} if "recordings" in options else {}
    example = torch.randn(4, 1, 8, 8)
    return exported(network, example, normalisation=normalisation, bf16=False, header=HEADER | options, **recordings)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    small = Small()
    small(torch.randn(32, 1, 8, 8))  # statistics that are not 0 and 1
    return small.eval()


@pytest.fixture(scope="module")
def model(network: nn.Module) -> ExportedModel:
    return export(network, 3.0, 2.0)


class Counting(Small):
    """The number of samples is a plain number to it, which torch then takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().view(len(x), 108))


@pytest.mark.long
@pytest.mark.parametrize("network", [Counting(), Recurrent()], ids=lambda network: type(network).__name__)
def test_networks_that_count_their_samples_and_recurrent_layers_of_torch(network: nn.Module) -> None:
    written = export(network.eval())
    x = torch.randn(9, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(written(x), network(x))


class Mixing(Small):
    """Outputs of a sample depend on the other samples."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0) * len(x))


class Choosing(Small):
    """A network whose computation depends on the samples' values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum().item() > 0 else -super().forward(x)


@pytest.mark.parametrize(("network", "words"), [(Mixing(), "other outputs"), (Choosing(), "no fixed list")])
def test_networks_that_are_no_list_of_operations_on_single_samples_are_refused(network: nn.Module, words: str) -> None:
    with pytest.raises(NotExportable, match=words):
        export(network.eval())


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
    of_bytes = export(network, 120.0, 60.0, bytes=True)
    assert of_bytes(torch.full((2, 1, 8, 8), 200, dtype=torch.uint8)).shape == (2, 2)
    with pytest.raises(UserError, match="takes whole numbers from 0 to 255"):
        of_bytes(torch.rand(2, 1, 8, 8))
    for value, dtype in ((40000, torch.int32), (-5, torch.int64), (256, torch.uint16)):
        with pytest.raises(UserError, match=f"samples from {value} to {value}: the model takes whole numbers from 0"):
            of_bytes(torch.full((2, 1, 8, 8), value, dtype=dtype))
    assert of_bytes(torch.zeros(0, 1, 8, 8, dtype=torch.int32)).shape == (0, 2)
    of_tokens = export(network, 120.0, 60.0, vocabulary=50)
    assert of_tokens(torch.full((2, 1, 8, 8), 49)).shape == (2, 2)
    for x, said in (
        (torch.full((2, 1, 8, 8), 50), "tokens from 50 to 50: the model has a vocabulary of 50"),
        (torch.full((2, 1, 8, 8), -1), "tokens from -1 to -1"),
        (torch.rand(2, 1, 8, 8), "takes tokens, which are whole numbers"),
    ):
        with pytest.raises(UserError, match=said):
            of_tokens(x)


def test_a_site_s_file_normalises_rows_for_a_model_without_a_normalisation_of_the_same_export(
    network: nn.Module,
) -> None:
    def of(normalised: bool, **changes: Any) -> ExportedModel:
        return export(network, *((3.0, 2.0) if normalised else ()), **changes)

    generic, site, x = of(False, site=None, needs_site=True), of(True), torch.randn(5, 1, 8, 8)
    assert torch.equal(generic(x, site), site(x))
    with pytest.raises(UserError, match="give the file of the site, too"):
        generic(x)
    other_cell = HEADER["cell"] | {"id": "1"}
    table = {"columns": [{"name": "age", "kind": "number"}]}
    for model, at, said in (
        (generic, generic, "no normalisation: give the file of the site"),
        (generic, of(False), "no normalisation: give the file of the site"),
        (generic, of(True, site=None), "no normalisation: give the file of the site"),
        (generic, of(True, cell=other_cell), r"Bonn is of another export \(cell 1\) than the generic model \(cell 0\)"),
        (generic, of(True, shape=[1, 4, 16]), "of another export"),
        (generic, of(True, table=table), "of another export"),
        (site, site, "the model of Bonn takes rows as they are: give no file"),
        (of(True, site=None), site, "the model of all sites takes rows as they are: give no file"),
    ):
        with pytest.raises(UserError, match=said):
            model(x, at)


def test_arrays_of_any_number_type_and_order_of_bytes(model: ExportedModel, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 200, (4, 1, 8, 8))
    expected = model(torch.from_numpy(x)).double().softmax(1)[:, 1].numpy()
    for dtype in (">i4", ">f8", "<f2", ">u2", "u1", ">u8"):
        np.save(tmp_path / "x.npy", x.astype(dtype))
        table = model.predict(tmp_path / "x.npy").table
        np.testing.assert_allclose(table["probability of yes"], expected, rtol=1e-6)
    for large, said in ((np.uint64(2**63), "below 2\\^63"), (1e300, "not finite"), (np.nan, "not finite")):
        np.save(tmp_path / "x.npy", np.full((1, 1, 8, 8), large))
        with pytest.raises(UserError, match=said):
            model.predict(tmp_path / "x.npy")


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
        written = export(network, recordings=recordings)
        assert len(recordings) == count
        with torch.no_grad():
            torch.testing.assert_close(written(x), network(x))


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


def test_what_is_no_model_is_refused_in_a_line(model: ExportedModel, tmp_path: Path) -> None:
    model.save(tmp_path / "m.pt")
    content = torch.load(tmp_path / "m.pt", weights_only=True)
    torch.save({**content, "pfleague_model": 99}, tmp_path / "later.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    (tmp_path / "half.pt").write_bytes((tmp_path / "m.pt").read_bytes()[:3000])
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_bytes(b"no file of torch")
    (tmp_path / "folder.pt").mkdir()
    words = {"later.pt": "99", "other.pt": "bench export", "half.pt": "damaged"}
    for name in (*words, "empty.pt", "text.pt", "folder.pt", "gone.pt"):
        with pytest.raises(UserError, match=words.get(name, name)) as refused:
            load_model(tmp_path / name)
        assert "\n" not in str(refused.value)
