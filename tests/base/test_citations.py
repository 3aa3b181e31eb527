"""What to cite: whatever a run may use has its entry, and cards, README and commands agree with the entries."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

import bench
from bench.citations import DATA_SET, FILE, cite, papers, software
from bench.errors import UserError
from bench.plugin import ATTACKS, CHANNELS, DATASETS, METHODS, SERVER_RULES, is_external
from bench.settings import AdapterSettings, PublicSet, Settings
from tests.conftest import ROOT

OTHERS = {DATA_SET: DATASETS, "attack:": ATTACKS, "server:": SERVER_RULES, "channel:": CHANNELS}
ADAPTERS = [name for kind in get_args(AdapterSettings) for name in get_args(kind.model_fields["name"].annotation)]
REGISTERED = {
    *("adapter:" + name for name in ADAPTERS),
    *(
        kind + name
        for kind, registry in {"": METHODS, **OTHERS}.items()
        for name in registry.names()
        if not is_external(registry.get(name))  # test files that were collected before register others
    ),
}
HOW = """
%s: no entry in bench/papers.bib. Add the paper there, one field a line, with the id among its `keywords`, where all but
methods stand after their kind, as in `data:`. If the paper is there already, add the id to its keywords; if there is
none, to `@comment{no paper`.
"""


def field(entry: str, name: str) -> str:
    """A field of an entry without its braces; empty where it has none."""
    match = re.search(rf"^  {name} = \{{(.*)\}},$", entry, re.MULTILINE)
    return match[1] if match else ""


def plain(text: str) -> str:
    """The ASCII letters and digits of a text, small, without LaTeX's accents and whatever stands between them."""
    ascii_text = text.encode("ascii", "ignore").decode()
    return re.sub(r"\W+", " ", re.sub(r"\\\W|\\[vc](?=\{)|[{}]", "", ascii_text)).strip().lower()


def unnamed(entry: str, text: str) -> list[str]:
    """The first author and the year of an entry, where a text does not name them."""
    first = plain(field(entry, "author").partition(" and ")[0].partition(",")[0])
    return [word for word in (first, field(entry, "year")) if not re.search(rf"\b{word}\b", plain(text))]


def test_everything_that_a_run_may_use_has_an_entry_and_nothing_else() -> None:
    missing = sorted(REGISTERED - papers().keys())
    assert not missing, HOW % ", ".join(missing)
    assert papers().keys() - REGISTERED == {"software:pfleague"}


def test_cards_name_the_same_papers() -> None:
    """Each with its first author and year, and the title of at least one: a card may name a basis in short."""
    folder = ROOT / "docs" / "methods"
    cards = re.findall(r"^\| \[`(\w+)`\]\((\S+)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    for name, file in cards:
        entries, card = papers().get(name, ()), (folder / file).read_text(encoding="utf-8")
        assert [word for entry in entries for word in unnamed(entry, card)] == [], file
        titles = [plain(field(entry, "title")) for entry in entries]
        assert any(title in plain(card) for title in titles) or not titles, file


def test_papers_are_those_that_the_code_names() -> None:
    """First author and year of each entry stand in the docstrings of the files that register it."""
    files = {"adapter:" + name: ROOT / "bench/models/adapters.py" for name in ADAPTERS}
    for kind, registry in OTHERS.items():
        for name in registry.names() if kind != DATA_SET else ():
            files[kind + name] = Path(str(sys.modules[registry.get(name).__module__].__file__))
    for name, file in files.items():
        text = file.read_text(encoding="utf-8")
        assert [word for entry in papers()[name] for word in unnamed(entry, text)] == [], name


def test_nothing_of_the_file_is_overlooked() -> None:
    """What the reader of the file does not take for an entry, because a line of it is not as it should be."""
    text = FILE.read_text(encoding="utf-8")
    read = {entry for entries in papers().values() for entry in entries}
    assert len(re.findall(r"^@(?!comment)", text, re.MULTILINE)) == len(read) > 100
    assert len(set(re.findall(r"^@\w+\{(.*),$", text, re.MULTILINE))) == len(read) + 1
    assert text.isascii()  # BibTeX itself knows no other letters


def faults(entry: str) -> list[str]:
    """What is wrong with an entry."""
    venues = ("journal", "booktitle", "institution", "howpublished", "eprint", "note")
    paper = not entry.startswith("@software")
    checks = {
        "lines": re.fullmatch(r"@\w+\{[a-z0-9_]+,\n(  [a-z]+ = \{.*\},\n)+\}\n", entry),
        "braces": entry.count("{") == entry.count("}"),
        "title and author": field(entry, "title") and field(entry, "author"),
        "year": not paper or re.fullmatch(r"(19|20)\d\d", field(entry, "year")) or "Anonymous" in entry,
        "venue": not paper or any(field(entry, name) for name in venues),
        "eprint": re.fullmatch(r"(\d{4}\.\d{4,5})?", field(entry, "eprint")),
        "archiveprefix": bool(field(entry, "eprint")) == bool(field(entry, "archiveprefix")),
        "doi": re.fullmatch(r"(10\.\d{4,}/\S+)?", field(entry, "doi")),
        "keywords": "keywords" not in entry,
    }
    return [f"{entry.splitlines()[0]} {name}" for name, sound in checks.items() if not sound]


def test_entries_are_sound() -> None:
    assert [fault for entries in papers().values() for entry in entries for fault in faults(entry)] == []


def test_a_run_cites_all_that_it_used() -> None:
    """The software with its version, methods, data sets, public ones too; and names of plug-ins are notes.

    An entry of two names is printed once.
    """
    public = Settings(method="fedmd", dataset="mnist", public=PublicSet(name="usps"))
    citation = cite(cells=[public, Settings(method="mine", dataset="my_data"), public], note="Entry 1")
    keys = re.findall(r"^@\w+\{(.*),$", citation.bibtex, re.MULTILINE)
    assert sorted(keys) == ["hull1994usps", "lecun1998mnist", "li2019fedmd", "pfleague"]
    assert f"version = {{{bench.__version__}}}" in citation.bibtex
    assert "note = {Entry 1}" in citation.bibtex
    assert citation.unrecorded == ("mine", "my_data")
    assert citation.notes[1] == "no paper is recorded for my_data: cite its own"
    assert cite().bibtex == cite(["local", "npz"]).bibtex == ""
    assert cite(["floco", "floco_plus"]).bibtex == cite(["floco"]).bibtex


def test_attack_server_channel_and_adapters_of_a_run_are_cited() -> None:
    """Together and each alone; by name, too; and those of plug-ins are notes."""
    attacked = Settings(method="fedavg", attack={"name": "alie", "share": 0.2}, server={"name": "krum"})
    compressed = Settings(
        method="fedavg", channel=({"name": "top_k", "share": 0.1}, {"name": "mine"}, {"name": "cast"})
    )
    both = cite(cells=[attacked, compressed])
    for key in ("baruch2019alie", "blanchard2017krum", "aji2017topk", "stich2018memory", "mcmahan2017fedavg"):
        assert both.bibtex.count(f"{{{key},") == 1
    assert both.unrecorded == ("mine",)
    assert "baruch2019alie" not in cite(cells=[compressed]).bibtex
    adapted = Settings(method="fedavg", model="vit_tiny", adapters={"name": "lora", "rank": 2})
    assert "{hu2022lora," in cite(cells=[adapted]).bibtex
    assert cite(["lora"]).bibtex in cite(cells=[adapted]).bibtex
    assert "baruch2019alie" in cite(["alie"]).bibtex
    assert cite(["noise"]).bibtex == cite(["krum"]).bibtex


def test_an_unknown_name_is_refused_with_the_likely_one() -> None:
    with pytest.raises(UserError, match=r"no paper is recorded for 'fedvag'\. Did you mean 'fedavg'"):
        cite(["fedvag"])
    with pytest.raises(UserError, match="Did you mean 'cifar10'"):
        cite(["cifra10"])


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    """Names, nothing, a path that is no run; and a method of the name of a folder here is still a method."""
    (tmp_path / "fedavg").mkdir()

    def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "bench.cli", "cite", *arguments]
        return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert command().stdout == software()
    assert command("fedavg", "digits").stdout == cite(["fedavg", "digits"]).bibtex
    wrong = command("runs/none")
    assert wrong.returncode == 2
    assert "bench: runs/none is not a run" in wrong.stderr


def test_readme_and_citation_file_are_of_this_version() -> None:
    described = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert software() in (ROOT / "README.md").read_text(encoding="utf-8")
    assert described["version"] == bench.__version__
    for name, value in (("title", described["title"]), ("author", described["authors"][0]["name"])):
        assert plain(field(software(), name)) == plain(value)
    assert described["license"] == field(software(), "license")


@pytest.mark.skipif(shutil.which("bibtex") is None, reason="no bibtex")
def test_bibtex_takes_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "all.bib").write_text(cite(entry.rpartition(":")[2] for entry in sorted(REGISTERED)).bibtex)
    (tmp_path / "all.aux").write_text("\\citation{*}\n\\bibdata{all}\n\\bibstyle{plain}\n")
    done = subprocess.run(["bibtex", "all"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    warnings = [line for line in done.stdout.splitlines() if line.startswith("Warning")]
    assert warnings == [], done.stdout
