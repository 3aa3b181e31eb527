"""The server of a job: the ordinary loop of a federation, in which the sites compute the clients' rounds."""

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from bench.engine.batches import DrawAddress
from bench.engine.programs import ProgramRun, Sent, Work
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.federation.simulated_time import ComputedRound
from bench.method import Message
from bench.params import leaves
from bench.sites.forms import Forms, check_numbers, largest
from bench.sites.job import SiteJob
from bench.sites.messages import Content, Envelope, Identity, Packed, Refused, Unpacked, decode, digest, encode
from bench.sites.site import MODEL, write_model
from bench.store import checkpoint, inside

log = logging.getLogger(__name__)

SERVER = "server"
"""Name of the server's folder on one machine."""


class Absent(NamedTuple):
    """Answer of a site that did not answer: the reason."""

    reason: str


class Hub(Protocol):
    """The server's end of the connections to all sites."""

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        """Send a message to each of these sites and wait for their answers."""


class Travelled(NamedTuple):
    """One message on the wire.

    Attributes:
        round: the server version that it makes, from 1.
        direction: `down` to a site or `up` from it.
        tensors: bytes of each tensor by its name in the message.
        whole: bytes of the message.
        largest: largest absolute value of the tensors' numbers.
    """

    round: int
    site: int
    direction: str
    kind: str
    tensors: dict[str, int]
    whole: int
    largest: float = 0.0


class SiteRounds:
    """Lets sites compute the rounds of clients: `bench.federation.client_rounds.Rounds` over a hub.

    A site that is absent, or whose answer is refused, takes no part in the round: the others begin it again without it.
    They answer what they have answered already, unless what they download is another thing now. A round in which fewer
    than half of the sites that it asked are left does not count: an outage would otherwise use up all rounds.

    Args:
        forms: what messages look like is learned there; None: it is what the job says.
        without: sites that are always left out.

    Attributes:
        after: by site, how many versions there were when a round of it was counted last (0: never).
        left_out: one line for each site that was left out of a round.
        messages: what travelled in the last round, as far as it counts.
    """

    def __init__(
        self, job: SiteJob, federation: Federation, hub: Hub, forms: Forms | None, without: Collection[int]
    ) -> None:
        self.after = dict.fromkeys(job.sites, 0)
        self.left_out: list[str] = []
        self.messages: list[Travelled] = []
        self._job = job
        self._federation = federation
        self._hub = hub
        self._forms = forms
        self._facts = job.forms or Forms()
        self._without = without
        self._clients = len(job.sites)
        self._models = {w.weights.numel() for w in map(federation.server.initial_model, federation.clients.ids)}
        self._identity = job.identity()
        self._log: list[Travelled] = []

    def compute(self, ids: list[int], version: int, now: float) -> list[ComputedRound]:
        """Have the rounds of sites computed; those that are left out are selected no longer.

        Raises:
            UserError: too many are left out; no checkpoint is written, so that the same command goes on in this round.
        """
        server, before, asked = self._federation.server, dict(self._federation.server.state), len(ids)
        absent: list[str] = []
        while True:
            server.selected, server.state, self._log = list(ids), dict(before), []
            downs = {i: self._federation.clients.down(i) for i in ids}
            events, missing = self._attempt(downs, version)
            if not missing:
                break
            for i, reason in missing.items():
                text = f"round {version + 1}: site {i} is left out: {reason}"
                self.left_out.append(text)
                absent.append(f"site {i} ({reason})")
                log.warning(text)
            if self._federation.method.everyone:
                raise UserError(f"{self._job.settings.method} needs all sites in every round; {self.left_out[-1]}")
            ids = [i for i in ids if i not in missing]
            if asked > 1 and 2 * len(ids) < asked:
                raise UserError(
                    f"round {version + 1}: fewer than half of {asked} sites are left, without {', '.join(absent)}. "
                    "Start the sites again, and then the server with the same command: it goes on in this round."
                    + self.largest(self.messages, "--back --without SITE")
                )
        self.messages = self._log
        self._name_heavy(events, version)
        return [self._computed(i, downs[i], events[i], version) for i in ids]

    def largest(self, rows: list[Travelled] | None = None, options: str = "--without SITE") -> str:
        """Sentences on what each site sent in a round, in the last attempt if none is given: one may spoil the model.

        Args:
            options: of the command that makes that round again without a site.
        """
        sent = {row.site: row for row in (self._log if rows is None else rows) if row.direction == "up"}
        if not sent:
            return ""
        numbers = ", ".join(f"site {i} {row.largest:.3g}" for i, row in sorted(sent.items()))
        [round_] = {row.round for row in sent.values()}
        return (
            f" The largest absolute values sent in round {round_}: {numbers}. If a site spoils the model, "
            f"`{options}` makes that round again without it"
        )

    def _name_heavy(self, events: dict[int, list[Work | Sent]], version: int) -> None:
        """Say whose upload has more than half of all weight where sites name the weights of their uploads."""
        of = {i: e.weight for i, sent in events.items() for e in sent if isinstance(e, Sent) and e.weight is not None}
        for i, weight in of.items():
            if len(of) > 2 and 2 * weight > (whole := sum(of.values())):
                log.warning("round %d: site %d has %.1f %% of all weight", version + 1, i, 100 * weight / whole)

    def _computed(self, i: int, down: dict[str, Any], events: list[Work | Sent], version: int) -> ComputedRound:
        traffic = self._federation.traffic
        size = traffic.download(down)
        for event in events:
            if isinstance(event, Sent) and event.waits:
                traffic.download(event.reply)
        program = ProgramRun(i, (_ for _ in ()), DrawAddress(self._job.settings.seed, version, i), events, done=True)
        return ComputedRound(self._federation.clients.copy(i), program, down, size)

    def _attempt(self, downs: dict[int, Any], version: int) -> tuple[dict[int, list[Work | Sent]], dict[int, str]]:
        """Try a round with these sites: what each did, and why some are missing."""
        events: dict[int, list[Work | Sent]] = {i: [] for i in downs}
        if excluded := {i: "the server was started without it" for i in downs if i in self._without}:
            return events, excluded
        requests = {i: self.request("round", i, down, version) for i, down in downs.items()}
        while requests:
            waiting: dict[int, dict[str, Any]] = {}
            missing: dict[int, str] = {}
            for i, answer in sorted(self._hub.ask(requests).items()):
                try:
                    asked = self._taken(i, answer, requests[i], version, downs[i], events[i])
                except Refused as problem:
                    missing[i] = str(problem)
                else:
                    if asked is not None:
                        waiting[i] = asked
            if missing:
                return events, missing
            requests = self._reply(waiting, version, events) if waiting else {}
        return events, {}

    def _reply(
        self, waiting: dict[int, dict[str, Any]], version: int, events: dict[int, list[Work | Sent]]
    ) -> dict[int, bytes]:
        messages = [Message(i, values, 1.0, version) for i, values in sorted(waiting.items())]
        replies = self._federation.method.reply(self._federation.server, messages)
        for i, values in waiting.items():
            events[i].append(Sent(values, waits=True, reply=replies[i]))
        return {i: self.request("reply", i, replies[i], version) for i in waiting}

    # -- messages -----------------------------------------------------------------------------------------------------

    def request(self, kind: Any, i: int, values: Any, version: int) -> bytes:
        """A message to a site."""
        packed = Packed()
        plain = packed.pack(values, "")
        envelope = Envelope(
            identity=self._identity, kind=kind, site=i, version=version, after=self.after[i], values=plain
        )
        body = encode(envelope, packed.tensors)
        if self._forms is not None:
            down = values["down"] if kind == "finish" else values
            self._forms.learn("reply" if kind == "reply" else "round", down, self._clients)
        self._note(Content(envelope, packed.tensors), body, "down")
        return body

    def _taken(
        self,
        i: int,
        answer: bytes | Absent,
        request: bytes,
        version: int,
        down: dict[str, Any],
        events: list[Work | Sent],
    ) -> dict[str, Any] | None:
        """Add to a site's events what an answer says; the values of its exchange, if it waits for a reply.

        Raises:
            Refused: the answer is no message that the method sends there.
        """
        content = read(self._identity, i, answer, request, self._job.limit("up"), "done", "exchange")
        envelope = content.envelope
        if envelope.version != version:
            raise Refused(f"its message is of round {envelope.version + 1}")
        known = self._federation.server.sizes[i]
        if envelope.kind == "done" and envelope.n_train != known:
            raise Refused(f"it has {envelope.n_train} training samples, and had {known} at the start")
        reader = Unpacked(content.tensors, self._federation.server.specs, self._job.dtype)
        sent = [down, *(event.reply for event in events if isinstance(event, Sent) and event.waits)]
        for event in envelope.events:
            if event.work is not None:
                events.append(Work(*event.work))
            else:
                events.append(Sent(self._values("upload", reader.unpack(event.sent), i, sent), event.weight))
        ended, asked = envelope.kind == "done", None
        if not ended:
            asked = self._values("exchange", reader.unpack(envelope.values), i, sent)
        reader.end()
        counted = events if asked is None else [*events, Sent(asked, waits=True)]
        if self._forms is None:
            self._facts.check_round(counted, known, self._job.limits.update, ended=ended)
        elif ended:
            self._forms.learn_round(counted, known)
        assert isinstance(answer, bytes)
        self._note(content, answer, "up")
        return asked

    def _values(self, kind: Literal["upload", "exchange"], values: Any, i: int, sent: list[Any]) -> dict[str, Any]:
        """The values of a site's message, which were sent in answer to `sent`, once they are checked or learned."""
        if self._forms is None:
            self._facts.check(kind, values, sent[0])
            check_numbers(values, sent, self._job.limits.update, self._federation.server.sizes[i], self._models)
        else:
            self._forms.learn(kind, values, self._clients)
        checked: dict[str, Any] = values
        return checked

    def _note(self, content: Content, body: bytes, direction: str) -> None:
        sizes = {name: tensor.nbytes for name, tensor in content.tensors.items()}
        envelope, most = content.envelope, largest(content.tensors)
        self._log.append(
            Travelled(envelope.version + 1, envelope.site, direction, envelope.kind, sizes, len(body), most)
        )
        if self._forms is not None:
            self._forms.bytes[direction] = max(self._forms.bytes.get(direction, 0), len(body))


def read(identity: Identity, i: int, answer: bytes | Absent, request: bytes, limit: int | None, *kinds: str) -> Content:
    """Read a site's answer to a request.

    Args:
        limit: most bytes of it; None: any.
        kinds: kinds that are due.

    Raises:
        Refused: there is none, or it cannot be taken.
    """
    if isinstance(answer, Absent):
        raise Refused(answer.reason)
    content = decode(answer, limit)
    envelope = content.envelope
    if difference := identity.difference(envelope.identity):
        raise Refused(f"the server and site {i} differ: {difference}")
    if (envelope.site, envelope.request) != (i, digest(request)):
        raise Refused("its message answers another one")
    if envelope.kind == "refused":
        raise Refused(envelope.reason)
    if envelope.kind not in kinds:
        raise Refused(f"a message {envelope.kind!r} where {' or '.join(kinds)} is due")
    return content


class SitesServer:
    """The server's part of a job, from the first round, or from its checkpoint, to the last.

    Args:
        job: the job.
        hub: the connections to the sites.
        folder: the server's folder, for checkpoints and the generic model.
        forms: what messages look like is learned there; None: it is what the job says.
        without: sites that are left out from now on, whose messages the operator does not trust.
        back: go on from the checkpoint before the last one, which is removed.

    Raises:
        UserError: at the start, a site is not there, or is of another package, method or settings, or says that it has
            more samples than the job takes; or there is no checkpoint to go back to.
    """

    def __init__(
        self,
        job: SiteJob,
        hub: Hub,
        folder: Path,
        forms: Forms | None = None,
        *,
        without: Collection[int] = (),
        back: bool = False,
    ) -> None:
        for site in without:
            job.check_site(site)
        self._job = job
        self._hub = hub
        self._folder = inside.make_folder(folder, folder)
        self._without = without
        if back:
            self._go_back()
        saved = next(checkpoint.load(folder / "checkpoint"), None)
        if saved is not None and saved.rest["identity"] != job.identity().model_dump():
            raise UserError(f"{folder} holds the checkpoint of another job, or of another version: take another folder")
        sizes = self._sizes() if saved is None else {int(i): n for i, n in saved.rest["sizes"].items()}
        self.federation = job.of_server(sizes)
        self.rounds = SiteRounds(job, self.federation, hub, forms, without)
        self.federation.client_rounds = self.rounds
        self._writer = checkpoint.Writer(folder / "checkpoint")
        if saved is not None:
            self.federation.restore(saved.tensors, saved.rest["federation"])
            self.rounds.after = {int(i): version for i, version in saved.rest["after"].items()}
            self.rounds.left_out = saved.rest["left_out"]
            self.rounds.messages = [Travelled(**row) for row in saved.rest.get("messages", ())]

    def _sizes(self) -> dict[int, int]:
        """Each site's number of training samples."""
        identity = self._job.identity()
        greetings = {
            i: encode(Envelope(identity=identity, kind="hello", site=i), {})
            for i in self._job.sites
            if i not in self._without
        }
        sizes, problems, most = dict.fromkeys(self._job.sites, 0), [], self._job.limits.n_train
        for i, answer in sorted(self._hub.ask(greetings).items()):
            try:
                sizes[i] = read(identity, i, answer, greetings[i], self._job.limit("up"), "here").envelope.n_train
                if not 1 <= sizes[i] <= most:
                    raise Refused(f"it says that it has {sizes[i]} training samples: `--max-samples` is {most}")
            except Refused as problem:
                problems.append(f"site {i}: {problem}")
        if problems:
            raise UserError(f"the job cannot start: {'; '.join(problems)}")
        told = (f"site {i} {n} ({n / sum(sizes.values()):.1%})" for i, n in sizes.items())
        log.info("training samples as the sites tell them, which are their weights: %s", ", ".join(told))
        return sizes

    def _go_back(self) -> None:
        """Remove the last checkpoint.

        Raises:
            UserError: it is the only one.
        """
        versions = [saved.version for saved in checkpoint.load(self._folder / "checkpoint")]
        if len(versions) < 2:
            raise UserError(f"--back: {self._folder} has no checkpoint before its last one")
        inside.remove(self._folder / "checkpoint" / checkpoint.name_of(versions[0]))

    def run(self) -> None:
        """Go on to the last round, then let every site have its model."""
        settings = self._job.settings
        while self.federation.version < settings.rounds:
            self.advance()
        self._finish()

    def advance(self) -> None:
        """Make the next server version, and write the checkpoint.

        Raises:
            UserError: the sites' messages cannot be aggregated, or too few came, or numbers of the server's state would
                be out of all proportion; the same command begins the round again.
        """
        round_, before = self.federation.version + 1, largest(self.federation.server.state)
        try:
            self.federation.advance()
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:  # of the method, on messages that have the form of the rehearsal's
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"round {round_} cannot be aggregated: {reason}.{self.rounds.largest()}") from error
        arrived = [row.largest for row in self.rounds.messages if row.direction == "up"]
        bound = self._job.limits.update * max(1.0, before, *arrived) * max(1, len(arrived))
        for where, leaf in leaves(self.federation.server.state):
            if not (size := largest(leaf)) <= bound:  # nor is it NaN
                text = f"round {round_}: the server's {where} would hold {size:g}, where {bound:g} is the most"
                raise UserError(f"{text}; nothing is written.{self.rounds.largest()}")
        self.rounds.after |= dict.fromkeys(self.federation.server.selected, self.federation.version)
        tensors, plain = self.federation.state()
        rest = {
            "federation": plain,
            "identity": self._job.identity().model_dump(),
            "sizes": self.federation.server.sizes,
            "after": self.rounds.after,
            "left_out": self.rounds.left_out,
            "messages": [row._asdict() for row in self.rounds.messages],
        }
        self._writer.save(checkpoint.Checkpoint(self.federation.version, tensors, rest))

    def _finish(self) -> None:
        """Write the generic model, and send each site what its own is made from."""
        federation, version = self.federation, self.federation.version
        generic = None
        if federation.method.trains != "pm":
            generic = federation.evaluator.generic(version, {})
            if generic is not None:
                write_model(self._folder / MODEL, generic, self._job, version)
        requests = {}
        for i in self.federation.clients.ids:
            if i in self._without:
                continue
            values: dict[str, Any] = {"down": federation.clients.down(i)}
            if federation.method.trains == "gm" and generic is not None:
                values["generic"] = generic
            requests[i] = self.rounds.request("finish", i, values, version)
        for i, answer in sorted(self._hub.ask(requests).items()):
            try:
                read(self._job.identity(), i, answer, requests[i], self._job.limit("up"), "finished")
            except Refused as problem:
                text = f"site {i} has not said that it has its model: {problem}"
                self.rounds.left_out.append(text)
                log.warning(text)
        lines = {"ledger": federation.ledger, "left_out": self.rounds.left_out}
        inside.replace(self._folder / "ledger.json", json.dumps(lines, indent=1).encode())
