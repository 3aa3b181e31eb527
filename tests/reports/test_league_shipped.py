"""The league's entries: in a checkout, or fetched once as the release file."""

import hashlib
import json
from pathlib import Path

import pytest

from bench.errors import UserError
from reports.league import shipped
from tools.league import release_file

NAME = "pfleague-league-entries.tar"


def test_the_release_file_of_the_checkout_has_the_checksum_that_is_named() -> None:
    """`python -m tools.league ship FOLDER` writes it."""
    assert shipped.Release.read().sha256 == hashlib.sha256(release_file()).hexdigest()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation without entries, with an empty cache, and the folder in which its release file is published."""
    entries = tmp_path / "entries" / "league_2_small"
    entries.mkdir(parents=True)
    for name in ("local.tar.xz", "fedavg.tar.xz", "partitions.json.xz"):
        (entries / name).write_text(name)
    server = tmp_path / "server"
    server.mkdir()
    content = release_file(entries.parent)
    (server / NAME).write_bytes(content)
    about = {"url": (server / NAME).as_uri(), "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / "release.json").write_text(json.dumps(about))
    monkeypatch.setattr(shipped, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.setattr(shipped, "RELEASE", tmp_path / "release.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return server


def test_entries_are_fetched_once(published: Path) -> None:
    files = shipped.shipped("league_2_small")
    assert [file.name for file in files] == ["fedavg.tar.xz", "local.tar.xz"]
    assert [file.read_text() for file in files] == ["fedavg.tar.xz", "local.tar.xz"]
    assert (files[0].parent / "partitions.json.xz").exists()
    (published / NAME).unlink()
    assert shipped.shipped("league_2_small") == files
    assert shipped.shipped("league_1_small") == []


def test_without_a_network_the_file_may_be_put_into_the_cache(published: Path, tmp_path: Path) -> None:
    file = (published / NAME).rename(tmp_path / NAME)
    with pytest.raises(UserError, match=f"cannot be fetched .* `curl -L --create-dirs -o {tmp_path}/cache/pfleague"):
        shipped.shipped("league_2_small")
    file.rename(tmp_path / "cache" / "pfleague" / NAME)
    assert len(shipped.shipped("league_2_small")) == 2


@pytest.mark.parametrize("place", ["server", "cache/pfleague"])
def test_another_file_is_refused(published: Path, tmp_path: Path, place: str) -> None:
    file = tmp_path / place / NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"of another version")
    with pytest.raises(UserError, match=r"its SHA256 is [0-9a-f]{64}, not "):
        shipped.shipped("league_2_small")
    assert not list((tmp_path / "cache" / "pfleague").glob("league-*"))
