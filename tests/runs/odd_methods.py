"""Methods with deliberate faults, as a plug-in of another package would provide them (entry point `bench.methods`)."""

import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.method import (
    METHODS,
    Client,
    Hyperparameters,
    Message,
    Method,
    Program,
    Server,
    State,
    Train,
    Upload,
    cross_entropy,
    hp,
)

PATIENCE = 600.0
"""Seconds after which a cell gives up waiting for another one."""


class Hyper(Hyperparameters):
    """The round in which the fault happens (0: never), how long the server takes, in seconds, and the file with which
    it takes no longer so: what is to be disturbed is slow until then."""

    round: int = hp(0, ge=0)
    nap: float = hp(0.0, ge=0)
    until: str = hp("")


class Odd(Method):
    """FedAvg with a fault; here none yet."""

    Hyper = Hyper
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        if not self.hp.until or not Path(self.hp.until).exists():
            time.sleep(self.hp.nap)
        if server.round + 1 == self.hp.round:
            self.go_wrong(server)
        super().aggregate(server, messages)

    def go_wrong(self, server: Server) -> None:
        """Do nothing; subclasses put their fault here."""


@METHODS.register("odd_slow")
class Slow(Odd):
    """No fault, but slow."""


class MeetingHyper(Hyper):
    """The folder in which two cells, which differ in `nap`, wait for each other in their third round."""

    folder: str = hp("")


@METHODS.register("odd_meets")
class Meets(Odd):
    """Slow, and goes on only when another cell of it runs: no worker gets both."""

    Hyper = MeetingHyper

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        if server.round > 1:  # the federation in which models are counted has two rounds
            self.meet(Path(self.hp.folder))
        super().aggregate(server, messages)

    def meet(self, folder: Path) -> None:
        """Wait until another cell is in the folder, too."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.hp.nap}").touch()
        deadline = time.monotonic() + PATIENCE
        while len(list(folder.iterdir())) < 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no other cell has come to {folder}")
            time.sleep(0.05)


_threads: set[int] = set()
_met = threading.Event()


def meeting(model: Any, values: Any, batch: Any, ctx: Any) -> Any:
    """Cross-entropy that waits until two threads have called it."""
    _threads.add(threading.get_ident())
    if len(_threads) > 1:
        _met.set()
    if not _met.wait(30):
        raise RuntimeError("no other thread has come")
    return cross_entropy(model, values, batch, ctx)


@METHODS.register("odd_together")
class Together(Method):
    """FedAvg that fails if only one client trains at a time."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=meeting)
        yield Upload({"model": trained["w"]})


@METHODS.register("odd_raises")
class Raises(Odd):
    def go_wrong(self, server: Server) -> None:
        raise RuntimeError("odd on purpose")


@METHODS.register("odd_dies")
class Dies(Odd):
    def go_wrong(self, server: Server) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def no_space(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: files with a cell's status cannot be written, as on a full disk."""
    if event == "open" and "status.json" in str(arguments[0]) and arguments[2] & os.O_WRONLY:
        raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))


@METHODS.register("odd_full")
class Full(Odd):
    def go_wrong(self, server: Server) -> None:
        sys.addaudithook(no_space)
