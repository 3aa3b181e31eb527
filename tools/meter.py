"""Run a command and print as JSON what it cost: `python meter.py LIMIT PROGRAM [ARGUMENT ...]`.

It imports the standard library only: the kernel counts the memory of who starts a process as that process's own peak.
On Linux it becomes the parent of every process that the command leaves behind, so their seconds count as well.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>
_GRACE_SECONDS = 5.0  # after a command was killed, for what it has left behind
_LOOK_SECONDS = 0.005  # between two looks at whether it has ended


def main(limit: float, command: list[str]) -> None:
    """Run `command`, kill it after `limit` seconds on the clock, and print its cost.

    `cpu`, `wall`: seconds, of all its processes and on the clock. `memory`: peak of its largest process, in bytes.
    `status`: exit status, negative for a signal. `over`: whether it was killed at the limit.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    nothing = subprocess.DEVNULL
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    cpu, memory, status, wall, over = 0.0, 0, 0, 0.0, False
    end = start + limit
    while True:
        try:
            pid, code, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid:
            cpu += usage.ru_utime + usage.ru_stime
            memory = max(memory, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
            if pid == process.pid:
                status, wall = os.waitstatus_to_exitcode(code), time.perf_counter() - start
        elif time.perf_counter() < end:
            time.sleep(_LOOK_SECONDS)
        elif over:
            break
        else:
            over, end = wall == 0, end + _GRACE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not over:
                break
    print(json.dumps({"cpu": cpu, "wall": wall, "memory": memory, "status": status, "over": over}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
