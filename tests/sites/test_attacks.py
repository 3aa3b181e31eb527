"""Strangers at either end: what they send leaves them out by name, and stops, spoils or deletes nothing else."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import UserError
from bench.sites.job import Limits
from bench.sites.mailbox import MailboxHub, MailboxLink, folder_of
from bench.sites.messages import decode, digest, read_file
from bench.sites.rehearsal import LocalHub, differences, simulate
from bench.sites.server import Absent
from bench.sites.site import MODEL, SiteClient
from bench.store import inside
from tests.sites.conftest import Small
from tests.sites.helpers import Faulty, edited, rewritten, upload

# -- a site against its server -----------------------------------------------------------------------------------------


def test_a_site_with_more_than_half_of_all_weight_is_named(
    small: Callable[..., Small], caplog: pytest.LogCaptureFixture
) -> None:
    """A weight that depends on the samples, such as a Fisher information, has a wide bound."""
    job = small("fedas", rounds=2, hp={"fisher": True})

    def heavier(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
        upload(envelope)["weight"] *= 20

    server = job.server(Faulty(job.sites(), lambda body: rewritten(body, heavier), {(1, 0)}))
    server.run()
    assert server.rounds.left_out == []
    [text] = [text for text in caplog.messages if text.startswith("round 2: ")]
    assert text.startswith("round 2: site 0 has 9")
    assert text.endswith(" % of all weight")


class Boasting(LocalHub):
    """A hub of which site 2 says that it has other numbers of samples."""

    n = 0

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        answers = super().ask(requests)
        body = answers.get(2)
        if isinstance(body, bytes) and decode(body).envelope.kind in ("here", "done"):
            answers[2] = edited(n_train=self.n)(body)
        return answers


@pytest.mark.parametrize("n", [0, pytest.param(10**6 + 1, marks=pytest.mark.long), 10**12])
def test_a_number_of_samples_beyond_the_job_s_is_refused_by_name(small: Callable[..., Small], n: int) -> None:
    """Nothing has begun: that site mends the number, or the operator goes on without it."""
    job = small("fedavg", rounds=1)
    hub = Boasting(job.sites())
    hub.n = n
    reason = f"the job cannot start: site 2: it says that it has {n} training samples: `--max-samples` is 1000000"
    with pytest.raises(UserError, match=reason):
        job.server(hub)
    server = job.server(hub, without=[2])
    server.run()
    assert sorted(server.federation.server.sizes) == [0, 1]
    assert server.rounds.left_out == []
    assert (job.work / "site-0" / MODEL).exists()
    assert not (job.work / "site-2" / MODEL).exists()


@pytest.mark.long
def test_a_spoiled_model_is_taken_back_from_the_checkpoint_before_it(small: Callable[..., Small]) -> None:
    """Its numbers are within the job's bound, a large one; the honest sites go on from the folders that they have."""
    job = small("ditto", rounds=4)
    job.job = job.job.model_copy(update={"limits": Limits(update=1e30)})

    def spoiled(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
        tensors["model.weights"] = tensors["model.weights"].sign() * 1e25

    server = job.server(Faulty(job.sites(), lambda body: rewritten(body, spoiled), {(2, 1)}))
    with pytest.raises(UserError, match="fewer than half of 3 sites are left") as error:
        server.run()
    assert server.federation.version == 3
    assert "its training diverged" in str(error.value)
    assert "The largest absolute values sent in round 3: site 0 " in str(error.value)
    assert ", site 1 1e+25, site 2 " in str(error.value)
    assert "`--back --without SITE` makes that round again without it" in str(error.value)
    again = job.server(LocalHub(job.sites()), back=True, without=[1])
    assert again.federation.version == 2
    again.run()
    assert [line.partition(": site 1 is left out: the server was started")[0] for line in again.rounds.left_out] == [
        "round 3", "round 4",
    ]  # fmt: skip
    for site in (0, 2):
        tensors, _ = read_file((job.work / f"site-{site}" / MODEL).read_bytes())
        assert all(torch.isfinite(tensor).all() and tensor.abs().max() < 10 for tensor in tensors.values())


def test_going_back_needs_an_earlier_checkpoint(small: Callable[..., Small]) -> None:
    job = small("fedavg")
    job.server(LocalHub(job.sites())).advance()
    with pytest.raises(UserError, match=r"--back: .* has no checkpoint before its last one"):
        job.server(LocalHub({}), back=True)
    with pytest.raises(UserError, match="there is no site 3"):
        job.server(LocalHub({}), without=[3])


@pytest.mark.parametrize(
    ("length", "number"), [(1e-30, r"\d+\.\d+e\+\d+"), pytest.param(1e-42, "(inf|nan)", marks=pytest.mark.long)]
)
def test_a_state_that_is_out_of_proportion_is_not_written(
    small: Callable[..., Small], length: float, number: str
) -> None:
    """FedNova divides by a length that a site sends; no bound of single messages sees what comes of it."""
    job = small("fednova", rounds=2)
    server = job.server(Faulty(job.sites(), edited({"length": torch.tensor(length)}), {(1, 2)}))
    with pytest.raises(
        UserError, match=rf"round 2: the server's \['model'\].weights would hold {number}, .*in round 2"
    ):
        server.run()
    again = job.server(LocalHub(job.sites()))
    assert again.federation.version == 1
    again.run()
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


# -- mailboxes ---------------------------------------------------------------------------------------------------------

BODY = b"a request"
ANSWER = digest(BODY).encode() + b"\nan answer"


def put(folder: Path, name: str, kind: str) -> None:
    """Put something of that kind where a message should be."""
    place = folder / name
    if kind == "link":
        (folder / "elsewhere").write_bytes(ANSWER if name == "answer" else BODY)
        place.symlink_to(folder / "elsewhere")
    elif kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "large":
        place.write_bytes(ANSWER)
        os.truncate(place, 3 * 2**30)
    else:
        folder.rmdir()
        folder.touch()


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("answer", "link", "answer is a link where a file should be"),
        ("answer", "folder", "answer is a folder where a file should be"),
        ("answer", "pipe", "answer is a pipe where a file should be"),
        ("answer", "large", "answer has 3221225472 bytes, where 1000 is the most"),
        ("request", "folder", "request is a folder where a file should be"),
        ("request", "no mailbox", "File exists"),
    ],
)
def test_a_mailbox_that_is_none_is_that_of_an_absent_site(name: str, kind: str, reason: str, tmp_path: Path) -> None:
    for i in (0, 1):
        folder_of(tmp_path, i).mkdir()
    put(folder_of(tmp_path, 0), name, kind)
    (folder_of(tmp_path, 1) / "answer").write_bytes(ANSWER)
    start = time.monotonic()
    answers = MailboxHub(tmp_path, 60.0, limit=1000).ask({0: BODY, 1: BODY})
    assert time.monotonic() - start < 30
    assert answers[1] == b"an answer"
    assert isinstance(answers[0], Absent)
    assert reason in answers[0].reason


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "large"])
def test_a_site_waits_until_the_request_is_a_message(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, received, folder = MailboxLink(tmp_path, 0, limit=1000), list[bytes](), folder_of(tmp_path, 0)
    put(folder, "request", kind)
    waits = threading.Thread(target=lambda: received.append(link.receive()), daemon=True)
    waits.start()
    waits.join(0.3)
    assert waits.is_alive()
    [text] = caplog.messages
    assert text.startswith("waiting for the server's next message: ")
    inside.remove(folder / "request")
    inside.replace(folder / "request", BODY)
    waits.join(60)
    assert received == [BODY]


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what a process reads")
def test_who_waits_reads_a_file_once(tmp_path: Path) -> None:
    """At either end; a file that is written anew is read again, also with the same content."""
    hub, link, size = MailboxHub(tmp_path, 0.5), MailboxLink(tmp_path, 0), 10**7
    (folder_of(tmp_path, 0) / "answer").write_bytes(b"x" * size)  # of an earlier round
    before = bytes_read()
    absent = hub.ask({0: b"y" * size})[0]
    assert isinstance(absent, Absent)
    assert absent.reason == "no answer in 0.5 seconds"
    assert bytes_read() - before < 2 * size
    assert link.receive() == b"y" * size
    before, received = bytes_read(), list[bytes]()
    waits = threading.Thread(target=lambda: received.append(link.receive()))
    waits.start()
    time.sleep(0.5)
    (folder_of(tmp_path, 0) / "request.new").write_bytes(b"y" * size)
    os.replace(folder_of(tmp_path, 0) / "request.new", folder_of(tmp_path, 0) / "request")
    time.sleep(0.5)
    assert bytes_read() - before < 2 * size
    assert received == []  # it was answered
    hub.ask({0: BODY})
    waits.join(60)
    assert received == [BODY]


# -- a server against its sites ----------------------------------------------------------------------------------------


def told(site: SiteClient, *bodies: bytes) -> list[str]:
    """The reasons for which a site refuses messages; `kind` of what it answers otherwise."""
    envelopes = [decode(site.answer(body)).envelope for body in bodies]
    return [envelope.reason if envelope.kind == "refused" else envelope.kind for envelope in envelopes]


class Recording(LocalHub):
    """A hub whose messages to site 1 are kept."""

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        self.seen = [*getattr(self, "seen", []), requests[1]]
        return super().ask(requests)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.long
def test_a_site_refuses_what_no_server_of_the_job_sends_and_keeps_its_state(small: Callable[..., Small]) -> None:
    job = small("ditto", rounds=6)
    hub = Recording(job.sites())
    server = job.server(hub)
    for _ in range(4):
        server.advance()
    last, kept = hub.seen[-1], files(job.work / "site-1")
    assert {"state-000002", "state-000003", "state-000004"} <= set(kept)

    def changed(**fields: Any) -> bytes:
        def change(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
            envelope.update(fields)
            if "values" in fields:
                tensors.clear()

        return rewritten(last, change)

    def with_nan(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
        tensors["model.weights"][0] = float("nan")

    attacks: list[tuple[bytes, str]] = [
        (changed(version=10**30), "version: Input should be less than or equal to"),
        (changed(version=10**9), "there is no round 1000000001 after 3"),
        (changed(version=6), "there is no round 7 after 3"),
        (changed(version=2), "there is no round 3 after 3"),
        (changed(version=5, after=0), "site 1 has states of rounds 2, 3, 4, and its server counts on state-000000"),
        (changed(version=5, after=1), "site 1 has states of rounds 2, 3, 4, and its server counts on state-000001"),
        (changed(values=None), "its round has no names"),
        (changed(values={"$dict": []}), "it did not send model"),
        (changed(values={"$dict": [["model", "text"]]}), "model is ['str'], where ['model', "),
        (changed(values="text"), "its round has no names"),
        (changed(kind="finish", version=6, values={"$dict": []}), "it should hold what the site's model is made from"),
        (changed(kind="finish", version=6, values={"$dict": [["down", "text"]]}), "its round has no names"),
        (changed(kind="reply"), "site 1 has not begun round 4"),
        (changed(kind="done"), "a server does not send 'done'"),
        (changed(site=0), "site 1 was sent a message to site 0"),
        (rewritten(last, with_nan), "model.weights is not finite"),
        (b"", "truncated, or no message"),
        (last[:100], "truncated, or no message"),
        (b"x" * 3_000_000, "a message of 3000000 bytes, where "),
    ]
    for said, (_, reason) in zip(told(job.site(1), *(body for body, _ in attacks)), attacks, strict=True):
        assert said.startswith(reason), (said, reason)
    assert files(job.work / "site-1") == kept
    server.advance()
    server.advance()
    server._finish()
    assert server.rounds.left_out == []
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


@pytest.mark.long
def test_earlier_messages_that_are_sent_again_delete_nothing(small: Callable[..., Small]) -> None:
    """In any order, also while the job goes on: the site's state is that of an undisturbed job."""
    job = small("ditto", rounds=5)

    class Replaying(Recording):
        def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
            for body in getattr(self, "seen", [])[::-1]:
                self._sites[1].answer(body)
            return super().ask(requests)

    server = job.server(Replaying(job.sites()))
    server.run()
    assert server.rounds.left_out == []
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


def test_a_program_that_fails_on_what_it_was_sent_does_not_end_the_site(
    small: Callable[..., Small], caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch may refuse any value that has the right form; here a model of one site's program is broken."""
    job = small("fedavg", rounds=2)
    site = job.site(1)

    def broken(client: Any, down: Any) -> Iterator[Any]:
        raise KeyError("missing")
        yield

    site._federation.method.client_round = broken  # type: ignore[method-assign]
    server = job.server(LocalHub({**job.sites(), 1: site}))
    server.run()
    assert server.rounds.left_out == [
        f"round {n}: site 1 is left out: its program ends with KeyError: 'missing'" for n in (1, 2)
    ]
    assert "the method's program has failed" in caplog.text
