"""What the dry run says of memory, against what tensors take."""

import pytest
import torch

from bench.engine.memory import MemoryMeter
from bench.runs.memory_forecast import held, models, rest_on_host
from bench.settings import Settings
from tests.harness.device_memory import device_memory


def test_a_footprint_is_what_is_there_at_one_time() -> None:
    with MemoryMeter() as footprint:
        x = torch.zeros(1000)
        y = x + 1
        view = y[:10]
        assert footprint.live == 8000
        del y
        assert footprint.live == 8000  # the view keeps it
        del view
        z = torch.cat([x, x])
    assert (footprint.live, footprint.peak) == (12_000, 12_000)
    del x, z
    assert (footprint.live, footprint.peak) == (0, 12_000)


@pytest.mark.parametrize(
    ("method", "between", "peak"),
    [
        ("local", 1, 2),  # the old model and the new one
        ("fedavg", 1, 2),  # one that is evaluated as the local model, one that is sent
        ("ditto", 2, 4),  # two models, both old and new
    ],
)
def test_models_that_a_client_holds(method: str, between: float, peak: float) -> None:
    each = held(method, "{}")[1]
    assert each == pytest.approx((between, peak), abs=0.1)  # and its samples


def test_models_rest_on_the_host_where_they_would_take_half_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(method="ditto", clients=100, participation=0.2, model="logistic")
    count = models(settings)  # two of every client, and two new ones of each of the twenty
    assert count == pytest.approx(240, rel=0.05)
    twice = 2 * count * 4 * (16 * 3 + 3)  # bytes of weights and biases
    for free in (0, twice):  # that is not asked
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 1.01 * twice))
        assert not rest_on_host(settings, (1, 4, 4), 3, "cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 0.99 * twice))
        assert rest_on_host(settings, (1, 4, 4), 3, "cuda")
        assert not rest_on_host(settings, (1, 4, 4), 3, "cpu")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 2.01 * twice))
        assert not rest_on_host(settings, (1, 4, 4), 3, "cuda", cells=2)
        assert rest_on_host(settings, (1, 4, 4), 3, "cuda", cells=3)


@pytest.mark.long
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "ditto", pytest.param("scd", marks=pytest.mark.slow)])
def test_the_memory_of_another_device(method: str, on_host: bool) -> None:
    """What the dry run says of a GPU, against the tensors that are there at one time on a device that counts them."""
    predicted, measured = device_memory(method, "mlp", 80, on_host)
    assert predicted == pytest.approx(measured, rel=0.2)
