"""A site: one client's samples and state, and its program in the ordinary engine.

Its state is on its own disk before its message leaves. Two states are kept: the one after the last round that the
server has counted, and the one after the round just computed, which counts only if the server says so in its next
message. So a round whose message got lost, or was refused, never was, as in a simulation with that dropout.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from bench.engine.anomalies import Diverged
from bench.engine.batches import DrawAddress
from bench.engine.programs import ProgramRun, Sent, Work
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
        ended = False
        while not ended:
            ended = self._serve_one(link.receive(), link)

    def _serve_one(self, body: bytes, link: SiteLink) -> bool:
        """Answer a message; return whether it was the last one."""
        try:
            answer, ended = self._answer(body, link)
        except _Instead as other:
            return self._serve_one(other.body, link)
        except Refused as problem:
            answer, ended = self._sealed("refused", body, reason=str(problem)), False
        link.send(answer)
        return ended

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
                self._forget_steps()
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
        content = decode(body)
        if difference := self._identity.difference(content.envelope.identity):
            raise Refused(f"site {self._site} and its server differ: {difference}")
        if content.envelope.site != self._site:
            raise Refused(f"site {self._site} was sent a message to site {content.envelope.site}")
        return content

    def _values(self, content: Content) -> Any:
        reader = Unpacked(content.tensors, self._federation.server.specs, self._job.dtype)
        values = reader.unpack(content.envelope.values)
        reader.end()
        return values

    def _sealed(self, kind: Any, request: bytes, packed: Packed | None = None, **fields: Any) -> bytes:
        envelope = Envelope(identity=self._identity, kind=kind, site=self._site, request=digest(request), **fields)
        return encode(envelope, packed.tensors if packed else {})

    # -- a round ------------------------------------------------------------------------------------------------------

    def _round(self, steps: list[bytes], link: SiteLink) -> bytes:
        """Compute a round and return the answer that ends it, with the new state on the disk.

        Args:
            steps: the message that began the round, and the replies to exchanges so far.
            link: for further exchanges.
        """
        content = self._read(steps[0])
        envelope, program = content.envelope, self._program(content)
        told, asked = 0, 0

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

        try:
            self._federation.engine.run([program], reply)
        except Diverged as error:
            raise Refused(f"its training diverged: {error.what}") from None
        if program.result is not None:
            as_model(program.result, f"{type(self._federation.method).__name__}.client_round")
        packed = Packed()
        events = _plain(program.events[told:], packed)
        answer = self._sealed("done", steps[-1], packed, version=envelope.version, events=events, n_train=self._n_train)
        self._keep(envelope.version + 1, envelope.after, answer)
        return answer

    def _program(self, content: Content) -> ProgramRun:
        envelope, federation = content.envelope, self._federation
        client = self._client(envelope.after)
        self._states[envelope.version + 1] = client = replace(client, state=dict(client.state))
        program = federation.method.client_round(client, self._values(content))
        return ProgramRun(self._site, program, DrawAddress(self._job.settings.seed, envelope.version, self._site))

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
            if not path.exists():
                inside.replace(path, step)

    def _forget_steps(self) -> None:
        for path in self._folder.glob("step-*"):
            path.unlink()

    # -- state --------------------------------------------------------------------------------------------------------

    def _file(self, kind: str, label: int) -> Path:
        return self._folder / f"{kind}-{label:06d}"

    def _client(self, after: int) -> Client:
        """The client with its state after the round that made the server's version `after` (0: before any).

        Raises:
            Refused: that state is not here.
        """
        clients = self._federation.clients
        if after == 0:
            return clients[self._site]
        if after not in self._states:
            path = self._file("state", after)
            if not path.exists():
                raise Refused(
                    f"site {self._site} has no state of round {after}: put its folder's file {path.name} back"
                )
            tensors, plain = read_file(inside.read_bytes(path))
            state = unpack(json.loads(plain), tensors, self._federation.server.specs)
            self._states[after] = replace(clients.bare(self._site), state=state)
        return self._states[after]

    def _keep(self, label: int, after: int, answer: bytes) -> None:
        """Write the state of a round and then its answer, and forget all others but the state that it came from."""
        packer = Packer()
        plain = packer.pack(self._states[label].state)
        inside.replace(self._file("state", label), write_file(packer.tensors, json.dumps(plain)))
        inside.replace(self._file("answer", label), answer)
        self._states = {at: client for at, client in self._states.items() if at in (after, label)}
        self._forget_steps()
        for path in self._folder.iterdir():
            kind, _, rest = path.name.partition("-")
            if kind in ("state", "answer") and rest.isdigit() and int(rest) not in (after, label):
                path.unlink()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, body: bytes) -> None:
        """Write the site's model: its personalized one, or the generic one where the method trains no other."""
        content = self._read(body)
        envelope, values, federation = content.envelope, self._values(content), self._federation
        model: Params | None = values.get("generic")
        if federation.method.trains != "gm":
            client = self._client(envelope.after)
            federation.server.round = envelope.version
            program = federation.method.personal(
                federation.server, replace(client, state=dict(client.state)), values["down"]
            )
            address = DrawAddress(self._job.settings.seed, envelope.version, self._site, "evaluate")
            model = as_model(federation.engine.finish(self._site, program, address), "personal")
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
            plain.append(PlainEvent(work=[event.steps, event.samples]))
        else:
            plain.append(PlainEvent(sent=packed.pack(event.values, ""), weight=event.weight))
    return plain
