"""NVIDIA FLARE carries a job: a provisioned server and three clients as processes, with TLS."""

from pathlib import Path

import pytest

from tests.warm import PATIENCE, Start

pytest.importorskip("nvflare")


@pytest.mark.long
def test_a_cell_over_flare_has_the_bytes_of_its_simulation(tmp_path: Path, fresh: Start) -> None:
    grid = "methods: [scd]\ndatasets: [digits]\nalphas: [1.0]\nclients: 3\nrounds: 3\nmodel_options: {hidden: 8}\n"
    (tmp_path / "grid.yaml").write_text(grid, encoding="utf-8")
    command = ["sites", "check", "grid.yaml", "--runtime", "flare", "--out", "work", "--patience", str(PATIENCE)]
    process = fresh(command, tmp_path)
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, out + err
    assert "models and ledger of 3 sites are the simulated cell's, byte by byte" in out
    assert (tmp_path / "work" / "poc").is_dir()
