"""Sites give the bytes of the simulated cell, and their messages hold what the ledger says and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.sites.messages import decode
from bench.sites.rehearsal import LocalHub, differences, simulate
from tests.sites.conftest import Small, cell

METHODS = ["fedavg", "fedper", "ditto", "scd", "scaffold", "fedproto", "fedala"]
KINDS = [("fedper", 3), *(pytest.param(method, 10, marks=pytest.mark.long) for method in METHODS)]


@pytest.mark.parametrize(("method", "rounds"), KINDS)
def test_sites_give_the_bytes_of_the_simulated_cell(small: Callable[..., Small], method: str, rounds: int) -> None:
    job = small(method, rounds=rounds)
    server = job.run()
    assert server.federation.version == rounds
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


@pytest.mark.long
def test_a_difference_would_be_seen(small: Callable[..., Small]) -> None:
    job = small("fedper")
    job.samples[1] = {**job.samples[1], "y": job.samples[1]["y"][::-1].copy()}
    job.run()
    seen = differences(simulate(job.settings, Path("data"), "debug"), job.work)
    assert seen == ["the model of site-0", "the model of site-1", "the model of site-2"]


@pytest.mark.long
def test_clients_that_are_not_selected_get_no_message(small: Callable[..., Small]) -> None:
    job = small("ditto", participation=0.6, rounds=4)
    server = job.run()
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []
    assert len([row for row in server.rounds.messages if row.kind != "finish"]) == 2 * 2
    assert server.rounds.left_out == []


class Watched(LocalHub):
    """A hub whose messages are kept."""

    def ask(self, requests):  # type: ignore[no-untyped-def]
        answers = super().ask(requests)
        self.seen = [*getattr(self, "seen", []), *requests.values(), *answers.values()]
        return answers


@pytest.mark.parametrize("method", ["scaffold", "fedproto"])
def test_messages_hold_what_the_ledger_says_and_nothing_else(small: Callable[..., Small], method: str) -> None:
    job = small(method)
    hub = Watched(job.sites())
    server = job.server(hub)
    server.run()
    contents = [decode(body) for body in hub.seen]
    sizes = {
        kind: sum(tensor.nbytes for c in contents if c.envelope.kind == kind for tensor in c.tensors.values())
        for kind in ("hello", "here", "round", "done")
    }
    ledger = server.federation.ledger
    assert sizes["hello"] == sizes["here"] == 0
    assert sizes["done"] == sum(row["up"] + row["up_buffers"] for row in ledger) > 0
    assert sizes["round"] == sum(row["down_receivers"] + row["down_receivers_buffers"] for row in ledger) > 0
    samples = {array.tobytes() for of in job.samples for array in of.values() if len(array)}
    for content in contents:
        assert not any(held in tensor.numpy().tobytes() for tensor in content.tensors.values() for held in samples)
        plain = content.envelope.model_dump(exclude_defaults=True)
        assert set(plain) <= {
            "identity", "kind", "site", "version", "after", "request", "values", "events", "n_train",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "centralized"}, "its server trains on the samples of all"),
        ({"method": "apple"}, "apple cannot run at sites: "),
        ({"method": "metafed"}, "metafed cannot run at sites: "),
        ({"method": "fedasync"}, "its messages come in the order of a simulated clock"),
        ({"normalise": "pooled"}, "normalise: pooled cannot run at sites: statistics of all sites' samples"),
        ({"channel": ({"name": "top_k", "share": 0.1},)}, "channel cannot run at sites"),
        ({"new_clients": 1}, "new_clients cannot run at sites"),
        ({"unselected": "broadcast"}, "unselected: broadcast cannot run at sites"),
    ],
)
def test_a_cell_that_needs_more_is_refused_by_name(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    from bench.sites.export import export

    method = changes.pop("method", "fedavg")
    with pytest.raises(UserError, match=reason):
        export(cell(method, **changes), Path("data"), tmp_path / "job")
    assert not (tmp_path / "job").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"normalise": "per_client"},
        {"client_models": ("mlp", "logistic"), "model": "mlp", "model_options": {}},
        {"server": {"name": "fedopt"}, "epochs": 2, "lr_decay": 0.9},
        {"selection": "by_size", "participation": 0.6},
        {"frozen": ("body",)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_cells_of_many_kinds_give_the_same_bytes(small: Callable[..., Small], changes: dict[str, object]) -> None:
    job = small("local" if "client_models" in changes else "fedavg", **changes)
    job.run()
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []
