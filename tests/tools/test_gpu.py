"""`make gpu` where there is no GPU: it says so, and its table compares what two runs have in common."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import bench
from tests.warm import PATIENCE
from tools import gpu


def test_without_a_gpu_it_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    assert "no GPU here" in capsys.readouterr().out


@pytest.mark.long
def test_its_table_says_how_far_apart_two_runs_are(tmp_path: Path) -> None:
    """Of two methods after each of two rounds; the learning rate stands for another device."""
    common = ["seeds=[0]", "alphas=[1]", "eval_every=1", "rounds=2", "methods=[fedavg, local]"]
    for place, lr in (("processor", 0.05), ("gpu", 0.05), ("other", 0.5)):
        bench.run("quickstart", out=tmp_path / "mlp" / place, overrides=[*common, f"lr={lr}"], quiet=True)
    same = gpu.differences(tmp_path, "mlp")
    assert sorted(same["label"]) == ["fedavg", "local"]
    assert (same["accuracies"] >= 2).all()
    assert (same["largest difference"] == 0).all()
    assert (same["last, processor"] == same["last, GPU"]).all()
    (tmp_path / "mlp" / "gpu").rename(tmp_path / "first")
    (tmp_path / "mlp" / "other").rename(tmp_path / "mlp" / "gpu")
    assert (gpu.differences(tmp_path, "mlp")["largest difference"] > 0).any()


def test_a_run_that_was_ended_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    """Here after two rounds of four; a run that never began gives no rows."""
    common = ["seeds=[0]", "alphas=[1]", "eval_every=1", "methods=[local]", "model_options={hidden: 8}"]
    for place, rounds in (("processor", 4), ("gpu", 2)):
        changes = [*common, f"rounds={rounds}"]
        bench.run("quickstart", out=tmp_path / "mlp" / place, overrides=changes, quiet=True)
    (found,) = gpu.differences(tmp_path, "mlp").to_dict("records")
    assert found["round"] == 2
    assert found["largest difference"] == 0
    assert found["last, processor"] == found["last, GPU"] > 0
    assert gpu.differences(tmp_path, "resnet18").empty


@pytest.mark.long
def test_tests_that_take_too_long_say_what_had_passed_and_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The third test waits for longer than there is; the time is over once it has begun."""
    file, begun = tmp_path / "test_slow.py", tmp_path / "begun"
    waits = f"open({str(begun)!r}, 'w').close(); time.sleep(600)"
    file.write_text(
        f"import time\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): {waits}\n", encoding="utf-8"
    )
    monkeypatch.setattr(gpu, "FILE", str(file))
    monkeypatch.setattr(gpu, "GRACE", PATIENCE)
    wait = subprocess.Popen.wait

    def until_it_has_begun(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout != gpu.TESTS:
            return wait(process, timeout)
        while not begun.exists():
            time.sleep(0.1)
        raise subprocess.TimeoutExpired("pytest", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", until_it_has_begun)
    assert gpu.tests() == 1
    said = capfd.readouterr().out
    assert "1 failed, 1 passed" in said
    assert "FAILED" in said
    assert f"more than {gpu.TESTS} seconds" in said


def test_a_process_that_does_not_end_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.terminate()
        assert gpu.wait_or_kill(process, time.monotonic() + 0.1) == -9
