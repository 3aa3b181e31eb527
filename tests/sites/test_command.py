"""`bench sites` refuses what cannot be, in one line, before anything runs."""

from pathlib import Path

import pytest

from tests.sites.conftest import Small, cell
from tests.warm import PATIENCE, Start


def said(start: Start, folder: Path, *arguments: str) -> str:
    """What a refused command says."""
    with start(["sites", *arguments], folder) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    return str(err)


@pytest.mark.long
def test_wrong_input_is_refused(tmp_path: Path, start_in: Start) -> None:
    Small(cell("fedavg"), tmp_path)
    grid = "methods: [fedavg, metafed]\ndatasets: [digits]\nalphas: [1.0]\nclients: 3\nrounds: 2\n"
    (tmp_path / "grid.yaml").write_text(grid, encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    place = ["--box", "box", "--folder", "mine"]
    for arguments, reason in [
        (["export", "grid.yaml", "--out", "new"], "grid.yaml has 2 cells: choose one"),
        (["export", "grid.yaml", "--only", "method=metafed", "--out", "new"], "metafed cannot run at sites: "),
        (["export", "grid.yaml", "--only", "method=fedavg", "--out", "full"], "full is not empty: give another folder"),
        (["serve", "nothing", *place], "there is no folder of a job nothing"),
        (["join", "job", "--site", "3", *place], "there is no site 3: the job has sites 0 to 2"),
        (["join", "job", "--site", "1", "--data", "no.py", *place], "no.py: there is no such file"),
    ]:
        assert reason in said(start_in, tmp_path, *arguments), arguments
    assert not (tmp_path / "new").exists()
    (tmp_path / "load.py").write_text("def load(folder, site):\n    return {'x': 1}\n", encoding="utf-8")
    text = said(start_in, tmp_path, "join", "job", "--site", "1", "--data", "load.py", *place)
    assert "load.py: `load` should return arrays by name" in text
    program = (
        "import numpy as np\ndef load(folder, site):\n    return {'x': np.zeros((4, 1, 8, 8)), 'y': np.arange(4)}\n"
    )
    (tmp_path / "load.py").write_text(program, encoding="utf-8")
    text = said(start_in, tmp_path, "join", "job", "--site", "1", "--data", "load.py", *place)
    assert "samples of float64 [1, 8, 8], and the job has uint8 [1, 8, 8]" in text


def test_a_runtime_that_is_not_installed_is_said_before_anything_is_computed(
    tmp_path: Path, fresh: Start, environment: dict[str, str]
) -> None:
    (tmp_path / "nvflare.py").write_text("raise ModuleNotFoundError('there is none')\n", encoding="utf-8")
    command = ["sites", "check", "no-such-grid.yaml", "--runtime", "flare"]
    with fresh(command, tmp_path, {"PYTHONPATH": f"{tmp_path}:{environment['PYTHONPATH']}"}) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert err.count("\n") == 1
    assert "--runtime flare: the package nvflare is not installed here (there is none)" in err
    assert "pip install 'pfleague[sites]'" in err
