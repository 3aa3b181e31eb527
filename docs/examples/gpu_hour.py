"""What a GPU does with cohorts: one script of some 25 minutes for the first hour on a new one.

    python docs/examples/gpu_hour.py --out gpu_hour.json
    python docs/examples/gpu_hour.py --out try.json --device cpu --tiny      # a rehearsal: every section, small sizes

Sections, in this order: what products and copies reach; a convolution with weights of its own in every lane, by way,
precision and lanes, with the kernels' names; a vector's spectrum by length; the steps of FedAvg and SCD, recorded and
not; rounds over very unequal clients; and whether an evaluation has the same bytes after a resume. The file is written
after each section, so that a cut-off loses one at most; a section that fails leaves its error there. The other half of
that hour is `tests/engine/test_gpu.py`.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.engine import backends
from bench.federation.federation import Federation
from bench.lanes import dft
from bench.lanes.convolution import convolve
from bench.lanes.geometry import Geometry
from bench.runs.provenance import provenance
from bench.settings import Settings
from bench.speed.measure import ceiling
from bench.speed.workloads import WORKLOADS

Found = dict[str, Any]

# ResNet-18 on 32 x 32: channels in and out, kernel, stride, side, how often.
LAYERS = (
    (3, 64, 3, 1, 32, 1),
    (64, 64, 3, 1, 32, 4),
    (64, 128, 3, 2, 32, 1),
    (128, 128, 3, 1, 16, 3),
    (128, 256, 3, 2, 16, 1),
    (256, 256, 3, 1, 8, 3),
    (256, 512, 3, 2, 8, 1),
    (512, 512, 3, 1, 4, 3),
)
RESNET18 = 11_173_962  # its weights for ten classes: what SCD's spectrum is of
BATCH = 10


def milliseconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Of one call: the median of `repeats` after two for warming up."""
    taken = []
    for k in range(repeats + 2):
        start = time.perf_counter()
        call()
        wait(device)
        if k > 1:
            taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def wait(device: str) -> None:
    """Until the device has done what it was told to."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def computing(precision: str) -> Iterator[torch.dtype]:
    """float32 as IEEE has it or in TF32; the dtype of tensors in this precision."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.fp32_precision, cudnn.conv.fp32_precision
    matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield torch.bfloat16 if precision == "bf16" else torch.float32
    finally:
        matmul.fp32_precision, cudnn.conv.fp32_precision = before


def ceilings(device: str, *, tiny: bool) -> Found:
    """TFLOP/s of a large matrix product in each precision, GB/s of a copy within the device and from the host."""
    precisions = ("bf16",) if tiny else ("fp32", "tf32", "bf16")
    found: Found = {f"tflops_{p}": ceiling(device, p, 1 if tiny else 10) / 1e12 for p in precisions}
    size = 1 << (20 if tiny else 30)
    there, host = (torch.zeros(size, dtype=torch.uint8, device=where) for where in (device, "cpu"))
    target = torch.empty_like(there)
    if device == "cuda":
        host = host.pin_memory()
    found["gb_per_s_device"] = 2 * size / milliseconds(lambda: target.copy_(there), device, 5) / 1e6  # read and written
    found["gb_per_s_host"] = size / milliseconds(lambda: target.copy_(host), device, 5) / 1e6
    return found


def one_by_one(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """A convolution per lane."""
    return torch.stack([functional.conv2d(a, b, stride=stride, padding=1) for a, b in zip(x, w, strict=True)])


def grouped(x: Tensor, w: Tensor, stride: int, layout: torch.memory_format = torch.contiguous_format) -> Tensor:
    """One convolution with a group per lane, which is what `vmap` makes of it."""
    lanes, batch, channels, *side = x.shape
    flat = x.transpose(0, 1).reshape(batch, lanes * channels, *side).contiguous(memory_format=layout)
    out = functional.conv2d(flat, w.flatten(0, 1), stride=stride, padding=1, groups=lanes)
    return out.reshape(batch, lanes, w.shape[1], *out.shape[2:]).transpose(0, 1)


def columns(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """Columns of all lanes, and one batched product."""
    lanes, batch, _, side, _ = x.shape
    cut = functional.unfold(
        x.flatten(0, 1), w.shape[-1], padding=1, stride=stride
    )  # [lanes * batch, in * k * k, places]
    cut = cut.reshape(lanes, batch, *cut.shape[1:]).transpose(1, 2).flatten(2)
    out = torch.bmm(w.flatten(2), cut).reshape(lanes, w.shape[1], batch, -1, -(-side // stride))
    return out.transpose(1, 2)


def lane_kernels(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """The kernels of `bench run --lane-kernels`, in bf16 on a GPU; elsewhere the same as grouped."""
    flat = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    geometry = Geometry((3, 3), (stride, stride), (1, 1))
    out: Tensor = convolve(flat, w.permute(0, 1, 3, 4, 2).contiguous(), geometry)
    return out.unflatten(1, w.shape[:2]).transpose(0, 1)


WAYS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "one by one": one_by_one,
    "grouped": grouped,
    "grouped, channels last": functools.partial(grouped, layout=torch.channels_last),
    "columns": columns,
    "lane kernels": lane_kernels,
}


def convolutions(device: str, *, tiny: bool) -> Found:
    """Milliseconds of forward and backward of all of ResNet-18's 3 x 3 convolutions, and the kernels that ran."""
    layers = LAYERS[:1] if tiny else LAYERS
    found: Found = {}
    for precision in ("fp32",) if tiny else ("fp32", "tf32", "bf16"):
        for lanes in (2,) if tiny else (8, 64):
            for name, way in WAYS.items():
                with computing(precision) as dtype:
                    key = f"{name}, {precision}, {lanes} lanes"
                    try:
                        took, kernels = _convolution(way, layers, lanes, dtype, device, 1 if tiny else 5)
                    except RuntimeError as error:  # a way that a library does not have, or no memory for it
                        found[key] = {"error": backends.one_line(error)}
                        continue
                    found[key] = {"ms": took, "kernels": kernels}
    return found


def _convolution(
    way: Callable[[Tensor, Tensor, int], Tensor],
    layers: tuple[tuple[int, ...], ...],
    lanes: int,
    dtype: torch.dtype,
    device: str,
    repeats: int,
) -> tuple[float, list[str]]:
    took, names = 0.0, set()
    for inputs, outputs, kernel, stride, side, times in layers:
        x = torch.randn(lanes, BATCH, inputs, side, side, device=device, dtype=dtype, requires_grad=True)
        w = torch.randn(lanes, outputs, inputs, kernel, kernel, device=device, dtype=dtype, requires_grad=True)

        def both(x: Tensor = x, w: Tensor = w, stride: int = stride) -> None:
            out = way(x, w, stride)
            torch.autograd.grad(out, (x, w), torch.ones_like(out))

        took += times * milliseconds(both, device, repeats)
        names |= kernels_of(both, device)
    return took, sorted(names)


def kernels_of(call: Callable[[], Any], device: str) -> set[str]:
    """Names of what ran on the device, shortened."""
    if device != "cuda":
        return set()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        wait(device)
    return {one.key[:100] for one in seen.key_averages()}


def spectra(device: str, *, tiny: bool) -> Found:
    """Milliseconds and memory of a cohort's magnitudes: by the library, in two steps, and of a length without a large
    prime factor."""
    lanes, length = (2, 3 * 131) if tiny else (8, RESNET18)
    ways: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
        "library": (length, torch.fft.rfft),
        "two steps": (length, functools.partial(dft.rfft, norm="backward")),
        "even factors": (-(-length // 2**12) * 2**12, torch.fft.rfft),
    }
    found: Found = {}
    for name, (d, transform) in ways.items():
        x = torch.randn(lanes, d, device=device)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took = milliseconds(lambda x=x, transform=transform: transform(x).abs(), device, 1 if tiny else 5)  # type: ignore[misc]
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        found[name] = {"length": d, "lanes": lanes, "ms": took, "peak_bytes": peak}
    return found


def federation(device: str, method: str, *, tiny: bool, lane_kernels: bool = False, **changes: Any) -> Federation:
    """A cell as in table1_fast: ResNet-18, as many pictures as CIFAR-10 has, a hundred clients of very unequal size."""
    workload = WORKLOADS["digits"] if tiny else replace(WORKLOADS["resnet18"], train=50_000, test=1000)
    common: Found = {"method": method, "participation": 1.0, "precision": "fp32" if device == "cpu" else "bf16"}
    if tiny:
        common["clients"] = 4
    settings = Settings.model_validate({**workload.settings.model_dump(), **common, **changes})
    data = workload.dataset()
    partition = workload.partition(data)
    how: Found = {"device": device, "executor": "cohort", "allow_fallback": True, "lane_kernels": lane_kernels}
    return Federation(settings, data, partition, **how)


def steps(device: str, *, tiny: bool) -> Found:
    """Milliseconds of a client's step in rounds of FedAvg and SCD: by precision, eager, recorded, with lane kernels."""
    found: Found = {}
    before = backends._RECORD_AFTER
    for method in ("fedavg", "scd"):
        for precision in ("fp32",) if device == "cpu" else ("fp32", "tf32", "bf16"):
            for way in ("eager", "recorded", *(("recorded, lane kernels",) if precision == "bf16" else ())):
                backends._RECORD_AFTER = 10**9 if way == "eager" else 2
                how: Found = {"tiny": tiny, "precision": precision, "lane_kernels": "kernels" in way}
                try:
                    found[f"{method}, {precision}, {way}"] = _rounds(
                        federation(device, method, **how), 1, 1 if tiny else 2
                    )
                finally:
                    backends._RECORD_AFTER = before
    return found


def _rounds(cell: Federation, warmup: int, rounds: int) -> Found:
    engine = cell.engine
    for _ in range(warmup):
        cell.advance()
    count, seconds, start = engine.steps, engine.seconds, time.perf_counter()
    for _ in range(rounds):
        cell.advance()
    wait(str(cell.path["device"]))
    taken = engine.steps - count
    return {
        "steps": taken,
        "ms_per_step_of_training": 1e3 * (engine.seconds - seconds) / taken,
        "ms_per_step_of_the_round": 1e3 * (time.perf_counter() - start) / taken,
        "fallbacks": list(engine.fallbacks),
    }


def unequal_rounds(device: str, *, tiny: bool) -> Found:
    """A round of FedAvg at two alphas: what unequal clients cost."""
    return {
        f"alpha {alpha:g}": _rounds(federation(device, "fedavg", tiny=tiny, alpha=alpha), 1, 1) for alpha in (0.1, 0.5)
    }


def resume(device: str, *, tiny: bool) -> Found:
    """Whether a cell that was stopped and goes on has the scores' bytes of one that was not."""
    first, second = (federation(device, "fedavg", tiny=tiny) for _ in range(2))
    first.advance()
    tensors, plain = first.state()
    second.restore({name: tensor.cpu() for name, tensor in tensors.items()}, plain)
    scores = []
    for cell in (first, second):
        cell.advance()
        scores.append([row["value"] for row in cell.evaluate().metrics])
    return {"scores": len(scores[0]), "same_bytes": scores[0] == scores[1]}


SECTIONS: dict[str, Callable[..., Found]] = {
    "ceilings": ceilings,
    "convolutions": convolutions,
    "spectra": spectra,
    "steps": steps,
    "unequal_rounds": unequal_rounds,
    "resume": resume,
}


def main() -> None:
    """Measure all sections, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="default: all")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: small sizes, one repetition")
    given = parser.parse_args()
    found: Found = {**provenance(), "device": given.device, "tiny": given.tiny, "sections": {}}
    for name in given.sections or SECTIONS:
        start = time.perf_counter()
        try:
            result = SECTIONS[name](given.device, tiny=given.tiny)
        except Exception as error:
            result = {"error": backends.one_line(error)}
        found["sections"][name] = {"seconds": time.perf_counter() - start, **result}
        given.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{name}: {found['sections'][name]['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
