"""`bench peer pfllib`: what is equal is called equal, and a fault is named at its first step.

The checkout is a small one of our own (tests/peer/checkout.py); `PFLLIB=CHECKOUT pytest tests/peer` takes the real one.
"""

from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench.config.grid import load_grid
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.peer.compare import Likeness, _further, alternatives, compare, run_here, run_there, write_outside
from bench.peer.pfllib import DATA, FURTHER, PLAN, Recorder, fill
from bench.settings import Settings
from tests.peer.checkout import checkout
from tests.runs.conftest import Bench

CLIENT = """
    from flcore.clients.clientbase import Client

    class clientProx(Client):
        def set_parameters(self, model):
            super().set_parameters(model)
            self.center = [p.data.clone() for p in model.parameters()]

        def train(self):
            self.model.train()
            for x, y in self.load_train_data():
                loss = self.loss(self.model(x), y)
                pull = sum(((p - c) ** 2).sum() for p, c in zip(self.model.parameters(), self.center))
                self.optimizer.zero_grad()
                (loss + MU / 2 * pull).backward()
                self.optimizer.step()
    """
SERVER = """
    from flcore.clients.clientprox import clientProx
    from flcore.servers.serveravg import FedAvg

    class FedProx(FedAvg):
        def __init__(self, args, times):
            super().__init__(args, times)
            self.clients = []
            self.set_clients(clientProx)

        def aggregate_parameters(self):
            weights = [client.train_samples for client in self.selected_clients]
            for server in self.global_model.parameters():
                server.data.zero_()
            for client, n in zip(self.selected_clients, weights):
                for server, local in zip(self.global_model.parameters(), client.model.parameters()):
                    server.data += local.data * n / DIVISOR
    """

BY_HAND = CLIENT.replace("self.optimizer.step()", "for p in self.model.parameters(): p.data -= 0.05 * p.grad")
BY_HAND += """
            self.train_time_cost["num_rounds"] += 1
    """
ORDER = """
        def train(self):
            for _ in range(self.args.global_rounds + 1):
                for client in self.clients:
                    client.set_parameters(self.global_model)
                for client in self.clients:
                    client.test_metrics()
                self.select_clients()
                self.selected_clients = self.select_clients()
                for client in self.selected_clients:
                    client.train()
                self.aggregate_parameters()
            self.absent
    """

STEP = """
        def train(self):
            for _ in range(self.args.global_rounds + 1):
                self.selected_clients = self.select_clients()
                for client in self.clients:
                    client.set_parameters(self.global_model)
                for client in self.clients:
                    before = [p.data.clone() for p in client.model.parameters()]
                    x, y = next(iter(client.load_train_data()))
                    client.loss(client.model(x), y).backward()
                    client.optimizer.step()
                    for p, values in zip(client.model.parameters(), before):
                        p.data = values
                    client.test_metrics()
                for client in self.selected_clients:
                    client.train()
                self.aggregate_parameters()
    """


def cell(**settings: Any) -> Settings:
    grid = {
        "methods": [{"name": "fedprox", "mu": 0.5}], "datasets": ["digits"], "alphas": [0.5], "seeds": [0],
        "clients": 4, "model": "logistic", "lr": 0.05, "batch_size": 50, "rounds": 2, "dtype": "float64",
        "batchnorm": "local",
    }  # fmt: skip
    return load_grid(grid | settings).cells[0]


def likeness_of(
    tmp_path: Path,
    settings: Settings,
    mu: float = 0.5,
    divisor: str = "sum(weights)",
    server: str = SERVER,
    client: str = CLIENT,
) -> Likeness:
    """Compare a cell with FedProx in the style of PFLlib."""
    files = []
    for name, text in (("serverprox.py", server), ("clientprox.py", client)):
        files.append(tmp_path / name)
        tmp_path.mkdir(exist_ok=True)
        files[-1].write_text(dedent(text).replace("MU", str(mu)).replace("DIVISOR", divisor), encoding="utf-8")
    here = run_here(settings, tmp_path)
    words = ["-algo=FedAvg", "-gr=2", "-nc=4", "-lr=0.05", "-lbs=50"]
    there = run_there(settings, tmp_path, checkout(tmp_path / "checkout"), words, here.selected, files)
    return compare(here, there)


@pytest.mark.long
@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"server": SERVER.rstrip(" ") + ORDER},
        {"server": SERVER.rstrip(" ") + STEP},
        {"client": BY_HAND.rstrip()},
    ],
    ids=["plain", "another order", "a step before a test", "without an optimizer"],
)
def test_equal_codes_are_called_equal(tmp_path: Path, texts: dict[str, str]) -> None:
    """A server may test first, select twice, fail after its last test or step before it."""
    likeness = likeness_of(tmp_path, cell(participation=0.5), **texts)
    assert likeness.equal
    assert max(likeness.differences) < 1e-12
    assert len(likeness.differences) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "place"),
    [
        # the first step starts from the center, where it has no pull
        ({"mu": 0.0}, "round 1, client 0, local step 2 "),
        ({"divisor": "4"}, "round 1, after local training"),
    ],
)
def test_a_fault_is_named_at_its_first_step(tmp_path: Path, fault: dict[str, Any], place: str) -> None:
    assert place in likeness_of(tmp_path, cell(), **fault).place


@pytest.mark.long
def test_buffers_that_nobody_averages_are_an_option_here(tmp_path: Path) -> None:
    settings = cell(model="test_norm", batchnorm="aggregate", participation=0.5)
    likeness = likeness_of(tmp_path, settings)
    assert "after local training" in likeness.place
    others = dict(alternatives(settings))
    assert likeness_of(tmp_path / "again", others["batchnorm: local"]).equal


def test_a_checkout_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    words = ["-algo=FedAvg", "-gr=1000000", "-nc=4", "-lr=0.05"]
    with pytest.raises(UserError, match=r"its main.py was stopped after 0 s"):
        run_there(cell(), tmp_path, checkout(tmp_path), words, [[0]], limit=0.1)


@pytest.mark.long
def test_a_code_that_tests_nobody_is_not_called_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PFLLIB", raising=False)  # its main.py is not ours to overwrite
    (checkout(tmp_path) / "system" / "main.py").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="tested not all clients"):
        run_there(cell(), Path("data"), tmp_path, [], [[0]])


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder of one client with twenty samples, which takes part in two rounds."""
    np.savez(tmp_path / DATA, **{f"{part}/0/{name}": np.arange(20) for part in ("train", "test") for name in "xy"})
    torch.save({0: ([], [])}, tmp_path / FURTHER)
    (tmp_path / PLAN).write_text(
        '{"seed": 0, "batch_statistics": false, "rounds": 2, "selected": [[0], [0]]}', encoding="utf-8"
    )
    return Recorder(tmp_path)


def test_an_unshuffled_loader_repeats_its_order(recorder: Recorder) -> None:
    """As FedALA's weights are trained until the losses of a pass's last batch are alike."""
    samples = recorder.samples("digits", 0)
    for shuffle in (False, True):
        loader = recorder.loader(samples, 8, shuffle=shuffle)
        first, second = (torch.cat([y for _, y in loader]).tolist() for _ in range(2))
        assert (first == second) is not shuffle


def test_a_round_ends_without_a_step_if_samples_were_seen_in_training(recorder: Recorder) -> None:
    """As FedPCL's clients only collect prototypes in their first round; an evaluation sees the samples, too."""

    def see(*, training: bool) -> None:
        [*recorder.loader(recorder.samples("digits", 0, is_train=training), 8)]
        recorder.keep_outputs(torch.zeros(20, 10), "output")

    server = SimpleNamespace(clients=[SimpleNamespace(id=0, train_time_cost={"num_rounds": 0})])
    recorder.select(server)
    see(training=False)
    see(training=True)
    recorder.select(server)
    see(training=True)
    recorder.select(server)
    see(training=False)
    assert [*recorder.captured] == ["output/0/0/0", "output/1/0/0"]


def test_further_networks_start_from_the_values_here(tmp_path: Path) -> None:
    federation = Federation.of(cell(methods=["gpfl"], model="mlp"), tmp_path)
    others, heads = _further(federation, 0)
    assert not heads
    classes, width = others[0][0].shape
    valve = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)).double() for _ in range(2)]
    client = nn.ModuleList([nn.Embedding(classes, width, dtype=torch.float64), nn.ModuleList(valve)])
    fill(client.modules(), others)
    for part, name in zip(valve, ("gamma", "beta"), strict=True):
        vector = torch.cat([p.flatten() for p in part.parameters()])
        assert torch.equal(vector, federation.server.state[name].weights)
    assert torch.equal(client[0].weight, federation.server.state["embeddings"])


def test_a_second_head_starts_as_it_does_here(tmp_path: Path) -> None:
    """FedRoD's starts at 0; PFLlib's is a copy of the first."""
    others, heads = _further(Federation.of(cell(methods=["fedrod"], model="mlp"), tmp_path), 0)
    assert not others
    head = nn.Linear(*reversed(heads[0][0].shape)).double()
    fill([head], heads)
    assert not any(p.any() for p in head.parameters())


def test_what_a_method_holds_out_are_the_last_samples_there(tmp_path: Path) -> None:
    federation = Federation.of(cell(methods=["fedfomo"]), tmp_path)
    write_outside(federation, [], [], tmp_path)
    data = federation.device_data
    with np.load(tmp_path / DATA) as written:
        for i in federation.clients.ids:
            held_out = data.local.x[data.positions(i, "holdout")].double().numpy()
            x = written[f"train/{i}/x"]
            assert len(x) == len(data.partition.train[i])
            assert len(held_out) == int(0.2 * len(x)) > 0
            np.testing.assert_array_equal(x[-len(held_out) :], held_out)


@pytest.mark.long
def test_command(bench: Bench, tmp_path: Path) -> None:
    options = ["--rounds", 1, "--set", "model=logistic", "--set", "model_options={}"]
    done = bench("peer", "pfllib", checkout(tmp_path), *options, "--", "-lbs", 50, "-nc", 4)
    assert done.stdout.endswith("equal\n")
    assert "from outside PFLlib: " in done.stdout


def test_what_is_no_checkout_or_half_a_method_is_refused(bench_here: Bench, tmp_path: Path) -> None:
    said = bench_here("peer", "pfllib", tmp_path, code=2).stderr
    assert "is no checkout of PFLlib: it has no system/main.py" in said
    said = bench_here("peer", "pfllib", checkout(tmp_path), "--client", "c.py", "--server", "s.py", code=2).stderr
    assert "--client, --server and --method go together" in said
