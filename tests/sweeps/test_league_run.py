"""`bench league run` before anything is trained: dry runs, and methods given by their file."""

from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.warm import PATIENCE, Start

METHOD = (ROOT / "methods" / "fedavg.py").read_text(encoding="utf-8")


def run(start_in: Start, folder: Path, *arguments: str, code: int = 0) -> str:
    with start_in([*arguments], folder) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, out + err
    return out + err


@pytest.mark.long
def test_a_dry_run_of_a_file_counts_cells_and_rounds(start_in: Start, tmp_path: Path) -> None:
    """Eight tasks, each tuned four times by eight trials on one seed, with seven seeds of results; one has 40 rounds,
    not 24."""
    (tmp_path / "mine.py").write_text(METHOD.replace('"fedavg"', '"mine"'), encoding="utf-8")
    said = run(start_in, tmp_path, "league", "run", "--method", "mine.py", "--dry-run").splitlines()
    assert sum(line.startswith("mine ") and "15 cells of 24 rounds, about" in line for line in said) == 7 * 4
    few = [line for line in said if line.startswith("mine digits sizes and few at a time")]
    assert len(few) == 4
    assert all("15 cells of 40 rounds, about" in line for line in few)
    rounds = 7 * 24 + 40
    assert f"trials: 256 cells, at most {4 * 8 * rounds} rounds" in said
    assert f"results: 224 cells, at most {4 * 7 * rounds} rounds" in said
    assert any(line.startswith(f"480 cells, at most {60 * rounds} rounds, ") and " of memory" in line for line in said)
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_a_dry_run_of_the_full_tier_needs_no_data(start_in: Start, tmp_path: Path) -> None:
    """It says which are missing. One case and a small model, because the forecast times rounds of every case."""
    definition = yaml.safe_load((ROOT / "sweeps" / "studies" / "league_1_full.yaml").read_text(encoding="utf-8"))
    definition["grid"] |= {"cases": definition["grid"]["cases"][2:3], "model": "mlp", "precision": "fp32"}
    (tmp_path / "full.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    said = run(start_in, tmp_path, "sweep", "--study", "full.yaml", "--device", "cpu", "--dry-run")
    for data, file in (("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")):
        assert f"fedavg {data} 1 in 10 clients alpha=0.3: 27 cells of 400 rounds, about" in said
        assert f"missing, for 1 of 2 tunings: {data}: data/{file}" in said
    assert f"54 cells, at most {54 * 400} rounds" in said
    assert "add `--download`" in said


def test_a_file_of_no_method_or_of_two_is_refused(start_in: Start, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n", encoding="utf-8")
    assert "none.py registers no method" in run(start_in, tmp_path, "league", "run", "--method", "none.py", code=2)
    two = METHOD.replace('@METHODS.register("fedavg")', '@METHODS.register("one")\n@METHODS.register("two")')
    (tmp_path / "both.py").write_text(two, encoding="utf-8")
    said = run(start_in, tmp_path, "league", "run", "--method", "both.py", code=2)
    assert "both.py registers 2 methods: choose one, for instance --method one --plugin both.py" in said
