"""What a site's samples are: the job names columns and classes, and samples do not change under way."""

import ast
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.errors import UserError
from bench.settings import Settings
from bench.sites.export import LOADER, export
from bench.sites.job import DataFacts, SiteJob, samples_digest, simulated
from bench.sites.rehearsal import LocalHub
from tests.sites.conftest import Small
from tests.sites.helpers import Faulty, edited


@pytest.fixture
def of_table(tmp_path: Path) -> Callable[[str], Settings]:
    """A cell on a table, with the name of its ill class."""

    def make(ill: str) -> Settings:
        rng = np.random.default_rng(0)
        sites = itertools.product("ABC", ("m", 'f"""'), ("healthy", ill), range(8))
        rows = [(rng.normal(60, 10), sex, rng.normal(120, 9), site, label) for site, sex, label, _ in sites]
        pd.DataFrame(rows, columns=["age", "sex", "bp", "site", "y"]).to_csv(tmp_path / f"{ill}.csv", index=False)
        return Settings(
            method="fedavg", dataset="csv", partition="natural", model="logistic", clients=3, rounds=2,
            dataset_options={"path": str(tmp_path / f"{ill}.csv"), "label_column": "y", "site_column": "site"},
        )  # fmt: skip

    return make


def test_a_job_names_columns_categories_and_classes(of_table: Callable[[str], Settings], tmp_path: Path) -> None:
    """A site that reads what `data.py` says cannot mistake their order; names may hold anything."""
    export(of_table("ill"), Path("data"), tmp_path / "job")
    program = ast.parse((tmp_path / "job" / LOADER).read_text(encoding="utf-8"))
    [load] = [node for node in program.body if isinstance(node, ast.FunctionDef)]
    lines = [line.strip() for line in (ast.get_docstring(load) or "").splitlines()]
    for line in ('0: "age"', '1: "sex=f"""', '2: "sex=m"', '3: "bp"', '0: "healthy"', '1: "ill"'):
        assert any(line.rstrip('"') in other for other in lines), line
    job = SiteJob.load(tmp_path / "job" / "job.json")
    assert job.data.table is not None
    assert [column["name"] for column in job.data.table["columns"]] == ["age", "sex", "bp"]
    export(of_table("sick"), Path("data"), tmp_path / "other")
    other = SiteJob.load(tmp_path / "other" / "job.json").model_copy(update={"settings": job.settings})
    assert other.identity().settings != job.identity().settings


def test_columns_in_another_order_are_refused_where_a_category_shows_it(of_table: Callable[[str], Settings]) -> None:
    dataset, samples = simulated(of_table("ill"), Path("data"))
    facts = DataFacts.of(dataset)
    facts.dataset(samples[0]["x"], samples[0]["y"])
    with pytest.raises(UserError, match=r"column 2 of `x`, sex=m, should be 0 or 1, .*: .*age, sex=f.*, sex=m, bp"):
        facts.dataset(samples[0]["x"][:, [0, 1, 3, 2]], samples[0]["y"])


def other_samples(job: Small, site: int, **changes: Any) -> None:
    job.samples[site] = {**job.samples[site], **changes}


@pytest.mark.long
def test_a_site_that_comes_back_with_other_samples_is_left_out(small: Callable[..., Small]) -> None:
    """Also with as many; once it has the old ones again it takes part."""
    job = small("fedavg", rounds=3)
    before = dict(job.samples[1])
    job.server(LocalHub(job.sites())).advance()
    other_samples(job, 1, y=9 - before["y"])
    server = job.server(LocalHub(job.sites()))
    server.advance()
    assert len(server.rounds.left_out) == 1
    assert "site 1 has other samples than those that it began with: load those again" in server.rounds.left_out[0]
    other_samples(job, 1, **before)
    again = job.server(LocalHub(job.sites()))
    again.run()
    assert again.rounds.left_out == server.rounds.left_out


def test_other_samples_may_come_before_a_job_has_begun(small: Callable[..., Small]) -> None:
    """The server then knows their number; once there is a state a new server does not take others."""
    job = small("fedavg", rounds=1)
    job.server(LocalHub(job.sites()))
    other_samples(job, 1, x=job.samples[1]["x"][:20], y=job.samples[1]["y"][:20])
    server = job.server(LocalHub(job.sites()))
    assert server.federation.server.sizes[1] == 20
    server.run()
    assert server.rounds.left_out == []
    (job.work / "server").rename(job.work / "earlier")
    other_samples(job, 1, x=job.samples[1]["x"][:10], y=job.samples[1]["y"][:10])
    with pytest.raises(UserError, match="cannot start: site 1: site 1 has other samples than those that it began with"):
        job.server(LocalHub(job.sites()))


def test_another_number_of_samples_in_a_message_is_refused(small: Callable[..., Small]) -> None:
    """Its weight in means is that of the start."""
    job = small("fedavg", rounds=2)

    server = job.server(Faulty(job.sites(), edited(n_train=20), {(1, 0)}))
    server.run()
    n = len(job.samples[0]["x"])
    assert server.rounds.left_out == [
        f"round 2: site 0 is left out: it has 20 training samples, and had {n} at the start"
    ]


def test_the_digest_depends_on_values_order_type_and_part() -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)
    alike = samples_digest({"x": x, "y": y})
    assert alike == samples_digest({"y": y.copy(), "x": np.asfortranarray(x)})
    others = [{"x": x[::-1], "y": y}, {"x": x, "y": y.astype(np.int32)}, {"x": x, "y": y, "y_validation": y[:0]}]
    assert len({alike, *(samples_digest(other) for other in others)}) == 4
