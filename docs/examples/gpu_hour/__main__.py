"""What a GPU does with cohorts: a script for the first hour on a new one.

    python docs/examples/gpu_hour --out gpu_hour.json                       # all sections in 25 minutes
    python docs/examples/gpu_hour --out try.json --device cpu --tiny        # a rehearsal: every section, small sizes

Where a command may take ten minutes only, three commands of eight cover it:

    python docs/examples/gpu_hour --out 1.json --minutes 8 correctness profile steps convolutions ceilings
    python docs/examples/gpu_hour --out 2.json --minutes 8 unequal_rounds resume inductor
    python docs/examples/gpu_hour --out 3.json --minutes 8 device_tests spectra lane_operations

Each section has a share of the minutes that are left, and its most important rows come first. No row is begun after
that time, and those left out are named in the file. A row ends with an error after 40 seconds; where it hangs in C,
which no error reaches, the script ends 15 seconds later and says on stderr where it was. Each row is printed and
written to the file as it is measured, and named there as the one that runs before it begins, so that a command that
is ended keeps what it has. A row that fails leaves its error there. Memory is in bytes, at its peak within the row.

Sections: twenty rounds of four methods, and then how far the CPU's are from them; the kernels of a round of FedAvg and
of SCD, by kind and the longest ones; steps of FedAvg and SCD, recorded and not; convolutions with weights of their own
in every lane, by precision, way and lanes, with the kernels' names; rounds over very unequal clients, and how long
calls with few lanes take; layers for all lanes, compared with float64; spectra; a step compiled by Inductor; what
products and copies reach; whether a cell has the same bytes after a resume; the core of `tests/engine/test_gpu.py`; and
what a recorded step consists of, which needs no GPU.
"""

import argparse
import faulthandler
import gc
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cells
import operations
import profiles
import recordings
import torch
from measure import Found, Rows, settings_restored, wait

from bench.engine.backends.backends import one_line
from bench.engine.device import make_deterministic
from bench.store.provenance import provenance

MOST, HANGS = 40, 15
"""Seconds that a row may take, and those after which it hangs if it has not ended by then."""


class Section(NamedTuple):
    """What is measured, and how much of the time it gets beside the others."""

    rows: Callable[[str, bool], Rows]
    share: float


SECTIONS = {
    "correctness": Section(cells.correctness, 4),
    "profile": Section(profiles.profiles, 1.5),
    "steps": Section(cells.steps, 7),
    "convolutions": Section(operations.convolutions, 2),
    "ceilings": Section(operations.ceilings, 0.5),
    "unequal_rounds": Section(cells.unequal_rounds, 4),
    "device_tests": Section(cells.device_tests, 3),
    "resume": Section(cells.resume, 1.5),
    "spectra": Section(operations.spectra, 1),
    "lane_operations": Section(operations.lane_operations, 1),
    "inductor": Section(cells.inductor, 2),
    "recordings": Section(recordings.recordings, 1),
}


def run(rows: Rows, until: float, found: Found, device: str, save: Callable[[], None]) -> bool:
    """Run rows until the time is over; the rest is named under `left_out`. Returns whether the device still works."""
    found |= {"seconds": 0.0, "rows": {}, "left_out": list(rows), "running": None}
    works, begin = True, time.perf_counter()
    for name, row in rows.items():
        start = time.perf_counter()
        if start >= until or not works:
            break
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found["running"] = name
        save()
        with settings_restored():
            result = ended_in_time(row)
        works = "error" not in result or still_works(device)
        if device == "cuda" and works:
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
            gc.collect()
            torch.cuda.empty_cache()
        found["left_out"].remove(name)
        found["running"] = None
        found["rows"][name] = {"seconds": time.perf_counter() - start, **result}
        found["seconds"] = time.perf_counter() - begin
        print(f"  {name}: {json.dumps(found['rows'][name])[:400]}", flush=True)
        save()
    save()
    return works


def ended_in_time(row: Callable[[], Found]) -> Found:
    """Run a row, or return its error. One that goes on in spite of the error for its time ends the script."""
    try:
        faulthandler.dump_traceback_later(MOST + HANGS, exit=True)
        signal.setitimer(signal.ITIMER_REAL, MOST, HANGS / 3)  # again, as an error in a `__del__` goes no further
        return row()
    except (Exception, TooLongError) as error:
        return {"error": one_line(error)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


class TooLongError(BaseException):
    """The end of a row's time. It is no `Exception`: the engine falls back after those, and the row would go on."""


def too_long(*_: object) -> None:
    """End the row that is running."""
    raise TooLongError(f"more than {MOST} seconds")


def still_works(device: str) -> bool:
    """Whether the process can go on with the device: after a kernel's illegal access it cannot."""
    try:
        wait(device)
    except RuntimeError:
        return False
    return True


def main() -> None:
    """Measure all sections, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="default: all")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all sections together (%(default)g)")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: small sizes, one repetition")
    given = parser.parse_args()
    end = time.perf_counter() + 60 * given.minutes
    signal.signal(signal.SIGALRM, too_long)
    torch.set_num_threads(1)  # as in a worker
    with settings_restored():
        make_deterministic(torch.device(given.device), "fp32")  # sets a variable that cuBLAS reads at its first use
    found: Found = {**provenance(), "device": given.device, "tiny": given.tiny, "sections": {}}

    def save() -> None:
        new = given.out.with_name(given.out.name + ".new")
        new.write_text(json.dumps(found, indent=1), encoding="utf-8")
        os.replace(new, given.out)

    names, works = list(given.sections or SECTIONS), True
    for k, name in enumerate(names):
        share = SECTIONS[name].share / sum(SECTIONS[other].share for other in names[k:])
        now = time.perf_counter()
        section = found["sections"].setdefault(name, {})
        until = now + share * (end - now) if works else now
        works = run(SECTIONS[name].rows(given.device, given.tiny), until, section, given.device, save) and works
        print(f"{name}: {section['seconds']:.1f} s, {len(section['left_out'])} rows left out", flush=True)
    if not works:
        print("The device was lost: name the sections that were left out in a new command.")


if __name__ == "__main__":
    main()
