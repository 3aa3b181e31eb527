"""A site: one client's samples and state, and its program in the ordinary engine.

Its state is on its own disk before its message leaves. Two states are kept: the one after the last round that the
server has counted, and the one after the round just computed, which counts only if the server says so in its next
message. So a round whose message got lost, or was refused, never was, as in a simulation with that dropout.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from bench.engine.anomalies import Diverged
from bench.engine.batches import DrawAddress
from bench.engine.programs import ProgramRun, Sent, Work
from bench.errors import UserError
from bench.federation.participants import as_model
from bench.federation.snapshot import Packer, unpack
from bench.method import Client, Message
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


class SiteLink(Protocol):
    """A site's end of the connection to its server."""

    def receive(self) -> bytes:
        """Wait for the next message."""

    def send(self, body: bytes) -> None:
        """Answer the message that came last."""


class _Instead(Exception):
    """Another message came where the reply to an exchange was due."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body


class SiteClient:
    """One client of a job.

    Args:
        job: the job.
        site: the client's number.
        samples: its samples.
        folder: its folder, for its state and its model.
        executor: of its engine.

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
        self._states: dict[int, Client] = {}

    def serve(self, link: SiteLink) -> None:
        """Answer messages until the server says that all rounds are done."""
        ended, body = False, link.receive()
        while not ended:
            try:
                answer, ended = self._answer(body, link)
            except _Instead as other:
                body = other.body
                continue
            except Refused as problem:
                log.warning("site %d takes no part: %s", self._site, problem)
                answer = self._sealed("refused", body, reason=str(problem))
            link.send(answer)
            if not ended:
                body = link.receive()

    def _answer(self, body: bytes, link: SiteLink) -> tuple[bytes, bool]:
        envelope = self._read(body).envelope
        self._check_samples(anew=envelope.kind == "hello")
        kept = self._file("answer", envelope.version + 1)
        if kept.exists() and decode(earlier := inside.read_bytes(kept)).envelope.request == digest(body):
            return earlier, False  # it got lost on its way
        match envelope.kind:
            case "hello":
                return self._sealed("here", body, n_train=self._n_train), False
            case "round":
                return self._round([body], link), False
            case "reply":
                return self._round(self._steps(envelope.version, body), link), False
            case "finish":
                self._finish(body)
                return self._sealed("finished", body), True
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
        except (Refused, _Instead, UserError, OSError, MemoryError):
            raise
        except Diverged as error:
            raise Refused(f"its training diverged: {error.what}") from None
        except Exception as error:
            if self._job.forms is None:
                raise
            log.warning("the method's program has failed", exc_info=True)
            raise Refused(f"its program ends with {type(error).__name__}: {error}") from error

    # -- a round ------------------------------------------------------------------------------------------------------

    def _round(self, steps: list[bytes], link: SiteLink) -> bytes:
        """Compute a round and return the answer that ends it, with the new state on the disk.

        Args:
            steps: the message that began the round, and the replies to exchanges so far.
            link: for further exchanges.
        """
        content = self._read(steps[0])
        envelope, told, asked = content.envelope, 0, 0
        client, values = self._client(envelope.after), self._values(content)

        def reply(messages: list[Message]) -> dict[int, Any]:
            nonlocal told, asked
            asked += 1
            if asked == len(steps):
                packed = Packed()
                values = packed.pack(messages[0].values, "")
                events = _plain(program.events[told:], packed)
                self._keep_steps(envelope.version, steps)
                link.send(
                    self._sealed("exchange", steps[-1], packed, version=envelope.version, values=values, events=events)
                )
                body = link.receive()
                answered = decode(body).envelope
                if (answered.kind, answered.version) != ("reply", envelope.version):
                    raise _Instead(body)
                self._keep_steps(envelope.version, [*steps, body])
                steps.append(body)
            told = len(program.events) + 1  # the exchange itself, which the engine notes next
            return {self._site: self._values(self._read(steps[asked]))}

        with self._refusing():
            program = self._program(client, values, envelope.version)
            self._federation.engine.run([program], reply)
            if program.result is not None:
                as_model(program.result, f"{type(self._federation.method).__name__}.client_round")
        packed = Packed()
        events = _plain(program.events[told:], packed)
        answer = self._sealed("done", steps[-1], packed, version=envelope.version, events=events, n_train=self._n_train)
        self._keep(envelope.version + 1, envelope.after, answer)
        return answer

    def _program(self, client: Client, values: Any, version: int) -> ProgramRun:
        self._states[version + 1] = client = replace(client, state=dict(client.state))
        program = self._federation.method.client_round(client, values)
        return ProgramRun(self._site, program, DrawAddress(self._job.settings.seed, version, self._site))

    def _steps(self, version: int, body: bytes) -> list[bytes]:
        """The messages of a round whose program was lost as this process ended, with the reply that has come now."""
        files = sorted(self._folder.glob(f"step-{version:06d}-*"))
        steps = [inside.read_bytes(path) for path in files]
        if not steps:
            raise Refused(f"site {self._site} has not begun round {version + 1}")
        return steps if body in steps else [*steps, body]

    def _keep_steps(self, version: int, steps: Sequence[bytes]) -> None:
        for number, step in enumerate(steps):
            path = self._folder / f"step-{version:06d}-{number:04d}"
            if not path.exists() or inside.read_bytes(path) != step:
                inside.replace(path, step)
        for path in sorted(self._folder.glob(f"step-{version:06d}-*"))[len(steps) :]:  # of an earlier attempt
            path.unlink()

    # -- state --------------------------------------------------------------------------------------------------------

    def _file(self, kind: str, label: int) -> Path:
        return self._folder / f"{kind}-{label:06d}"

    def _client(self, after: int) -> Client:
        """The client with its state after the round that made the server's version `after` (0: before any).

        Raises:
            Refused: that state is not here.
        """
        clients, kept = self._federation.clients, self._labels()
        if after == 0 and len(kept) <= 2:  # more are there only if the server has counted a round of this site
            return clients[self._site]
        if after == 0:
            raise Refused(
                f"site {self._site} has states of rounds {', '.join(map(str, kept))}, and its server knows of none: "
                "give the server its folder back, or begin the job anew with an empty folder of the site"
            )
        if after not in self._states:
            path = self._file("state", after)
            if not path.exists():
                raise Refused(
                    f"site {self._site} has no state of round {after}, but of {', '.join(map(str, kept)) or 'none'}: "
                    f"put its folder's file {path.name} back, or begin the job anew with an empty folder"
                )
            tensors, plain = read_file(inside.read_bytes(path))
            state = unpack(json.loads(plain), tensors, self._federation.server.specs)
            self._states[after] = replace(clients.bare(self._site), state=state)
        return self._states[after]

    def _keep(self, label: int, after: int, answer: bytes) -> None:
        """Write the state of a round and then its answer, and forget what the job needs no longer.

        That are states before the last two that the server has counted, as it may go back by one, and states between
        the last one and this, which it has not counted. So a message from earlier, sent again, deletes no state.
        """
        packer = Packer()
        plain = packer.pack(self._states[label].state)
        inside.replace(self._file("state", label), write_file(packer.tensors, json.dumps(plain)))
        inside.replace(self._file("answer", label), answer)
        counted = [at for at in self._labels() if at <= after][-2:]
        self._states = {at: client for at, client in self._states.items() if at in (*counted, label)}
        for at in self._labels():
            if at < label and at not in counted:
                for path in self._file("answer", at), self._file("state", at):
                    path.unlink(missing_ok=True)
        for path in self._folder.glob("step-*"):
            if int(path.name.split("-")[1]) < label:
                path.unlink()

    def _labels(self) -> list[int]:
        """Numbers of the rounds after which a state is kept here, in order."""
        names = (path.name.removeprefix("state-") for path in self._folder.glob("state-*"))
        return sorted(int(name) for name in names if name.isdigit())

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, body: bytes) -> None:
        """Write the site's model: its personalized one, or the generic one where the method trains no other."""
        content = self._read(body)
        envelope, values, federation = content.envelope, self._values(content), self._federation
        model: Params | None = values.get("generic")
        with self._refusing():
            if federation.method.trains != "gm":
                client = self._client(envelope.after)
                federation.server.round = envelope.version
                program = federation.method.personal(
                    federation.server, replace(client, state=dict(client.state)), values["down"]
                )
                address = DrawAddress(self._job.settings.seed, envelope.version, self._site, "evaluate")
                model = federation.engine.finish(self._site, program, address)
            model = None if model is None else as_model(model, "personal")
        if model is not None:
            write_model(self._folder / MODEL, model, self._job, envelope.version)


def write_model(path: Path, model: Params, job: SiteJob, version: int) -> None:
    """Write a model's tensors by name."""
    about = {"method": job.settings.method, "model": model.spec.arch, "round": version}
    inside.replace(path, write_file(model.tensors(), json.dumps(about)))


def _plain(events: Sequence[Work | Sent], packed: Packed) -> list[PlainEvent]:
    plain: list[PlainEvent] = []
    for event in events:
        if isinstance(event, Work):
            plain.append(PlainEvent(work=(event.steps, event.samples)))
        else:
            plain.append(PlainEvent(sent=packed.pack(event.values, ""), weight=event.weight))
    return plain
