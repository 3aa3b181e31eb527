"""A site: one client's samples and state, and its program in the ordinary engine.

Its state is on its own disk before its message leaves. Two states are kept: the one after the last round that the
server has counted, and the one after the round just computed, which counts only if the server says so in its next
message. So a round whose message got lost, or was refused, never was, as in a simulation with that dropout.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.engine.anomalies import Diverged
from bench.engine.batches import DrawAddress
from bench.engine.programs import ProgramRun, Sent, Work
from bench.errors import UserError
from bench.federation.participants import as_model
from bench.federation.snapshot import Packer, unpack
from bench.method import Client, Message, Program
from bench.params import Params
from bench.settings import Executor
from bench.sites.job import SiteJob, SiteSamples, samples_digest
from bench.sites.messages import (
    Content,
    Envelope,
    Packed,
    PlainEvent,
    Refused,
    Unpacked,
    decode,
    digest,
    encode,
    read_file,
    write_file,
)
from bench.store import inside

log = logging.getLogger(__name__)

MODEL = "model.safetensors"
"""File of a site's model in its folder, once all rounds are done."""

DIGEST = "samples.digest"
"""File of a site's folder with the digest of the samples that its state was trained on."""


class _Waits(Exception):
    """The program of a round waits for the reply to an exchange."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self.values = values


@dataclass(frozen=True)
class _Round:
    """A round that has begun.

    Attributes:
        began: the envelope of the message that began it.
        client: the client, whose state the program changes.
        run: the program.
        told: how many of the program's events the server knows of.
    """

    began: Envelope
    client: Client
    run: ProgramRun
    told: int = 0


class SiteClient:
    """One client of a job, which answers messages of its server.

    Args:
        job: the job.
        site: the client's number.
        samples: its samples.
        folder: its folder, for its state and its model.
        executor: of its engine.

    Attributes:
        finished: whether the server has said that all rounds are done.

    Raises:
        UserError: the job has no such site, or the samples are not of its kind.
    """

    def __init__(
        self, job: SiteJob, site: int, samples: SiteSamples, folder: Path, executor: Executor = "auto"
    ) -> None:
        job.check_site(site)
        self._job = job
        self._site = site
        self._folder = inside.make_folder(folder, folder)
        self._identity = job.identity()
        self._federation = job.of_site(site, samples, executor)
        self._n_train = self._federation.clients.bare(site).n_train
        self._digest = samples_digest(samples)
        self._waiting: _Round | None = None
        self._latest = "", b""  # digest of a message, and its answer
        self.finished = False

    def answer(self, body: bytes) -> bytes:
        """Answer a message; one that cannot be taken is answered with the reason."""
        try:
            return self._answer(body)
        except Refused as problem:
            log.warning("site %d takes no part: %s", self._site, problem)
            return self._sealed("refused", body, reason=str(problem))

    def _answer(self, body: bytes) -> bytes:
        content = self._read(body)
        envelope = content.envelope
        self._check_samples(anew=envelope.kind == "hello")
        if digest(body) == self._latest[0]:  # the answer got lost on its way
            return self._latest[1]
        match envelope.kind:
            case "hello":
                return self._sealed("here", body, n_train=self._n_train)
            case "round":
                return self._advance(self._begun(content), body)
            case "reply":
                return self._advance(self._resumed(content), body)
            case "finish":
                self._finish(content)
                self.finished = True
                return self._sealed("finished", body)
        raise Refused(f"a server does not send {envelope.kind!r}")

    def _check_samples(self, *, anew: bool) -> None:
        """Refuse to go on with other samples than those that the server knows the number of.

        Args:
            anew: whether the job begins: other samples may come as long as there is no state.

        Raises:
            Refused: they are others.
        """
        path = self._folder / DIGEST
        if not path.exists() or (anew and not any(self._folder.glob("state-*"))):
            inside.replace(path, self._digest.encode())
        elif inside.read_bytes(path).decode() != self._digest:
            raise Refused(
                f"site {self._site} has other samples than those that it began with: load those again, or begin "
                "the job anew with an empty folder"
            )

    def _read(self, body: bytes) -> Content:
        content = decode(body, self._job.limit("down"))
        if difference := self._identity.difference(content.envelope.identity):
            raise Refused(f"site {self._site} and its server differ: {difference}")
        if content.envelope.site != self._site:
            raise Refused(f"site {self._site} was sent a message to site {content.envelope.site}")
        last = self._job.settings.rounds - (content.envelope.kind != "finish")
        if not content.envelope.after <= content.envelope.version <= last:
            raise Refused(f"there is no round {content.envelope.version + 1} after {content.envelope.after}")
        return content

    def _values(self, content: Content) -> Any:
        """The values of a message from the server.

        Raises:
            Refused: they are not what the rehearsal's server sent.
        """
        reader = Unpacked(content.tensors, self._federation.server.specs, self._job.dtype)
        values, finish = reader.unpack(content.envelope.values), content.envelope.kind == "finish"
        reader.end()
        if finish and not (isinstance(values, dict) and {"down"} <= values.keys() <= {"down", "generic"}):
            raise Refused("it should hold what the site's model is made from, and perhaps the generic model")
        if self._job.forms is not None:
            kind: Literal["round", "reply"] = "reply" if content.envelope.kind == "reply" else "round"
            self._job.forms.check(kind, values["down"] if finish else values)
        return values

    def _sealed(self, kind: Any, request: bytes, packed: Packed | None = None, **fields: Any) -> bytes:
        envelope = Envelope(identity=self._identity, kind=kind, site=self._site, request=digest(request), **fields)
        return encode(envelope, packed.tensors if packed else {})

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Refuse a message on which the method's program fails: what a server sends does not end a site.

        Raises:
            Refused: the program failed, or its training diverged. In a rehearsal, the error of the program itself.
        """
        try:
            yield
        except (Refused, _Waits, UserError, OSError, MemoryError):
            raise
        except Diverged as error:
            raise Refused(f"its training diverged: {error.what}") from None
        except Exception as error:
            if self._job.forms is None:
                raise
            log.warning("the method's program has failed", exc_info=True)
            raise Refused(f"its program ends with {type(error).__name__}: {error}") from error

    # -- a round ------------------------------------------------------------------------------------------------------

    def _begun(self, content: Content) -> _Round:
        envelope, values = content.envelope, self._values(content)
        client = self._client(envelope.after)
        address = DrawAddress(self._job.settings.seed, envelope.version, self._site)
        with self._refusing():
            run = ProgramRun(self._site, self._federation.method.client_round(client, values), address)
        return _Round(envelope, client, run)

    def _resumed(self, content: Content) -> _Round:
        """The round that waits for a reply, with that reply.

        Raises:
            Refused: none does; the process that began the round may have ended.
        """
        waiting, version = self._waiting, content.envelope.version
        if waiting is None or waiting.began.version != version:
            raise Refused(f"site {self._site} has not begun round {version + 1}")
        program = _answered(waiting.run.program, self._values(content))
        return replace(waiting, run=replace(waiting.run, program=program, waiting=None))

    def _advance(self, round_: _Round, request: bytes) -> bytes:
        """Run a program to its next exchange, or to its end, and return the answer; at the end, the state is on the
        disk before."""

        def wait(messages: list[Message]) -> dict[int, Any]:
            raise _Waits(messages[0].values)

        run, packed, kind, self._waiting = round_.run, Packed(), "done", None
        fields: dict[str, Any] = {"n_train": self._n_train}
        try:
            with self._refusing():
                self._federation.engine.run([run], wait)
                if run.result is not None:
                    as_model(run.result, f"{type(self._federation.method).__name__}.client_round")
        except _Waits as exchange:
            kind, fields = "exchange", {"values": packed.pack(exchange.values, "")}
            self._waiting = replace(round_, told=len(run.events))
        events = _plain(run.events[round_.told :], packed)
        answer = self._sealed(kind, request, packed, version=round_.began.version, events=events, **fields)
        if kind == "done":
            self._keep(round_)
        self._latest = digest(request), answer
        return answer

    # -- state --------------------------------------------------------------------------------------------------------

    def _state_file(self, label: int) -> Path:
        return self._folder / f"state-{label:06d}"

    def _client(self, after: int) -> Client:
        """The client with its state after the round that made the server's version `after` (0: before any).

        Raises:
            Refused: that state is not here.
        """
        clients, kept = self._federation.clients, self._labels()
        if after == 0 and len(kept) <= 2:  # more are there only if the server has counted a round of this site
            return clients.copy(self._site)
        path = self._state_file(after)
        if not path.exists():
            raise Refused(
                f"site {self._site} has states of rounds {', '.join(map(str, kept)) or 'none'}, and its server counts "
                f"on {path.name}: give the one that lost its folder's files them back, or begin the job anew with "
                "empty folders"
            )
        tensors, plain = read_file(inside.read_bytes(path))
        state = unpack(json.loads(plain), tensors, self._federation.server.specs)
        return replace(clients.bare(self._site), state=state)

    def _keep(self, round_: _Round) -> None:
        """Write the state of a round, and forget those that the job needs no longer.

        That are states before the last two that the server has counted, as it may go back by one, and states between
        the last one and this, which it has not counted. So a message from earlier, sent again, deletes no state.
        """
        packer, label = Packer(), round_.began.version + 1
        plain = packer.pack(round_.client.state)
        inside.replace(self._state_file(label), write_file(packer.tensors, json.dumps(plain)))
        counted = [at for at in self._labels() if at <= round_.began.after][-2:]
        for at in self._labels():
            if at < label and at not in counted:
                self._state_file(at).unlink()

    def _labels(self) -> list[int]:
        """Numbers of the rounds after which a state is kept here, in order."""
        names = (path.name.removeprefix("state-") for path in self._folder.glob("state-*"))
        return sorted(int(name) for name in names if name.isdigit())

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, content: Content) -> None:
        """Write the site's model: its personalized one, or the generic one where the method trains no other."""
        envelope, values, federation = content.envelope, self._values(content), self._federation
        model: Params | None = values.get("generic")
        with self._refusing():
            if federation.method.trains != "gm":
                federation.server.round = envelope.version
                program = federation.method.personal(federation.server, self._client(envelope.after), values["down"])
                address = DrawAddress(self._job.settings.seed, envelope.version, self._site, "evaluate")
                model = federation.engine.finish(self._site, program, address)
            model = None if model is None else as_model(model, "personal")
        if model is not None:
            write_model(self._folder / MODEL, model, self._job, envelope.version)


def write_model(path: Path, model: Params, job: SiteJob, version: int) -> None:
    """Write a model's tensors by name."""
    about = {"method": job.settings.method, "model": model.spec.arch, "round": version}
    inside.replace(path, write_file(model.tensors(), json.dumps(about)))


def _answered(program: Program, answer: Any) -> Program:
    """Go on with a program that waits for an answer."""
    while True:
        try:
            request = program.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield request


def _plain(events: Sequence[Work | Sent], packed: Packed) -> list[PlainEvent]:
    return [
        PlainEvent(work=(event.steps, event.samples))
        if isinstance(event, Work)
        else PlainEvent(sent=packed.pack(event.values, ""), weight=event.weight)
        for event in events
    ]
