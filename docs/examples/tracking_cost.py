"""What does MLflow's mirror cost a run: its own store, a server that never answers, one that answers after two seconds?

    python docs/examples/tracking_cost.py SCRATCH_FOLDER GRID [TIMES]

runs the grid's cells in every way in turn, three times over, two cells side by side; docs/lab-notes.md shows what
came out. `end` is the time between the last cell's end and the command's. The slow server is MLflow's own behind a
proxy that waits before every request.
"""

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DELAY = 2.0


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to a server after `DELAY` seconds."""

    target = ""

    def pass_on(self) -> None:
        """One request there, one answer back."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(DELAY)
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        request = urllib.request.Request(self.target + self.path, body or None, headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
        with contextlib.suppress(OSError):  # who asked is gone
            self.send_response(answer.status or 500)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = pass_on  # noqa: N815 (the names that http.server calls)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def slow_server(folder: Path) -> Iterator[str]:
    """The address of a real tracking server behind the proxy."""
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--workers", "1", "--port", str(port)]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "log.txt", "wb") as log, ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.daemon_threads = True
        proxy.block_on_close = False
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        Proxy.target = f"http://127.0.0.1:{port}"
        try:
            while not answers(Proxy.target):
                time.sleep(0.5)
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            os.killpg(server.pid, 9)
            server.wait()
            proxy.shutdown()


def answers(address: str) -> bool:
    """Whether a server is up."""
    try:
        urllib.request.urlopen(f"{address}/health", timeout=5).close()
    except OSError:
        return False
    return True


def measure(folder: Path, grid: str, options: list[str]) -> str:
    """Run the grid once; wall time, processor time, and how long the command went on after its last cell."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "bench.cli", "run", "--grid", grid, "--out", str(folder), "--jobs", "2"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run([*command, "--device", "cpu", "--quiet", *options], stderr=subprocess.PIPE, text=True)
    end, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    last = max(path.stat().st_mtime for path in folder.glob("*/status.json"))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = done.stderr.strip().replace("\n", " ")
    return f"wall {end - start:6.1f} s, cpu {cpu:6.1f} s, end {end - last:4.1f} s, exit {done.returncode} {said}"


def main(scratch: Path, grid: str, times: int = 3) -> None:
    """Print a line for every run."""
    with socket.socket() as silent, slow_server(scratch / "server") as slow:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        ways = {
            "off": ["--no-tracking"],
            "own store": [],
            "silent": ["--tracking-uri", f"http://127.0.0.1:{silent.getsockname()[1]}"],
            "slow": ["--tracking-uri", slow],
        }
        for _ in range(times):
            for way, options in ways.items():
                print(f"{way:9}", measure(scratch / "run", grid, options), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
