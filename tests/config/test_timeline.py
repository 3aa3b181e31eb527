"""What cannot be in a timeline is refused by name, before anything runs, in a grid and from Python alike."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.config.checked import counting_line
from bench.config.grid import load_grid
from bench.errors import UserError
from bench.runs.plan import plan
from tests.conftest import ROOT

CELL: dict[str, Any] = {"clients": 6, "rounds": 8, "partition": "iid"}
LABELS = [{"name": "concept_shift", "clusters": 2}]

Change = dict[str, Any]
WRONG: list[tuple[list[Change], dict[str, Any], str]] = [
    ([{"round": 8, "exchange": 1.0}], {}, "no round is left after round 8 of 8"),
    ([{"round": 4, "exchange": 1.0}, {"round": 2, "exchange": 1.0}], {}, "rounds [4, 2] should rise"),
    ([{"round": 4, "exchange": 1.0}, {"round": 4, "add_classes": 1}], {}, "should rise; write the changes of one"),
    ([{"round": 4}], {}, "nothing changes after round 4: give one of shifts, exchange"),
    ([{"round": 3, "exchange": 1.0}], {"eval_every": 2}, "round 3 is not evaluated with eval_every = 2"),
    ([{"round": 2, "arrive": [5, 6]}], {}, "arrive = [5, 6], and clients are numbered 0 to 5"),
    ([{"round": 2, "arrive": [5, 4]}], {}, "arrive = [5, 4] should be the first and the last client"),
    ([{"round": 2, "leave": [5]}], {}, "leave"),
    ([{"round": 2, "arrive": [1, 1]}, {"round": 4, "arrive": [1, 2]}], {}, "client 1 cannot arrive, as it is"),
    ([{"round": 2, "leave": [1, 1]}, {"round": 4, "leave": [0, 1]}], {}, "client 1 cannot leave, as it is not"),
    ([{"round": 2, "leave": [0, 5]}], {}, "round 2: nobody is left"),
    ([{"round": 2, "arrive": [0, 5]}], {}, "all clients arrive later"),
    ([{"round": 2, "exchange": 0.2}], {}, "exchange = 0.2 of 6 clients is less than two"),
    ([{"round": 2, "exchange": 1.0}], {"new_clients": 1}, "`new_clients` are scored after the last round"),
    ([{"round": 2, "shifts": [{"name": "rotatoin"}]}], {}, "unknown shift 'rotatoin'. Did you mean"),
    ([{"round": 2, "shifts": [{"name": "rotation", "group": 2}]}], {}, "unknown option 'group' of shift"),
    ([{"round": 2, "shifts": [*LABELS, *LABELS]}], {}, "is listed twice"),
    ([{"round": 2, "drift": 1}], {}, "drift"),
    ([{"round": 2, "leave": [1, 1]}], {"method": "cfl"}, "cfl needs all clients in every round"),
]


@pytest.mark.parametrize(("timeline", "others", "expected"), WRONG)
def test_a_change_that_cannot_be_is_refused(timeline: list[Change], others: dict[str, Any], expected: str) -> None:
    settings: dict[str, Any] = {**CELL, "method": "fedavg", "datasets": ["digits"], **others, "timeline": timeline}
    with pytest.raises(UserError) as of_grid:
        load_grid(settings)
    assert expected in str(of_grid.value)
    assert "timeline" in str(of_grid.value)
    del settings["datasets"]
    with pytest.raises((UserError, ValueError)) as of_settings:
        bench.Settings(**settings)
    assert expected in str(of_settings.value)


def test_classes_that_do_not_exist_are_refused_before_anything_runs(tmp_path: Path) -> None:
    for adding in ([10], [4, 6]):
        timeline = [{"round": 2 + k, "add_classes": count} for k, count in enumerate(adding)]
        cell = bench.Settings(method="fedavg", timeline=timeline, **CELL)
        with pytest.raises(UserError, match="add_classes adds 10 classes, and digits has 10, of which one"):
            plan([cell], tmp_path, download=False)


def test_a_shift_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    timeline = [{"round": 2, "shifts": [{"name": "rotation"}]}]
    cell = bench.Settings(method="fedavg", dataset="synthetic", timeline=timeline, **CELL)
    with pytest.raises(UserError, match="needs images"):
        plan([cell], tmp_path, download=False)


COUNTING = """
from bench.method import METHODS, Method

@METHODS.register("counting")
class Counting(Method):
    mean_of = ("model",)

    def {where}:
        {line}
"""


@pytest.mark.parametrize(("where", "line", "refused"), [
    ("init_client(self, server, client)", 'client.state["prior"] = client.label_counts / client.n_train', True),
    ("init(self, server)", 'server.state |= {"model": server.initial_model(), "n": sum(server.sizes.values())}', True),
    ("init(self, server)", 'server.state |= {"model": server.initial_model(), "n": server.sizes[0]}', True),
    ("init(self, server)", 'server.state |= {"model": server.initial_model(), "n": len(server.sizes)}', False),
    ("broadcast(self, server, client)", 'return {**server.state, "n": client.n_train}', False),
])  # fmt: skip
def test_a_method_with_statistics_from_before_a_change_is_refused(
    where: str, line: str, refused: bool, plugin: Callable[[str], Path]
) -> None:
    plugin(COUNTING.format(where=where, line=line))
    assert (counting_line("counting") is not None) == refused
    made: dict[str, Any] = {**CELL, "method": "counting", "timeline": [{"round": 2, "exchange": 1.0}]}
    if refused:
        with pytest.raises(UserError, match=r"counts a client's samples once and for all \(line 9 of its file\)"):
            bench.Settings(**made)
        made["timeline"] = ()
    assert bench.Settings(**made).method == "counting"


@pytest.mark.long
def test_one_method_of_ours_cannot_follow() -> None:
    """APPLE starts from the clients' shares of the data, and fades them out. A command knows before torch is there."""
    names = "[name for name in METHODS.names() if counting_line(name) is not None]"
    code = f"from bench.config.checked import METHODS, counting_line; print({names})"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "['apple']\n"
