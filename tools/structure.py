"""The structure of the source before its modules moved into rooms of one job each, and now, counted and drawn.

`python -m tools.structure` draws docs/structure-before.svg and docs/structure-after.svg and writes the numbers
in docs/lab-notes.md. `python -m tools.structure history` also writes docs/structure.json again: what the
earlier commit looked like.

A room is a folder with code, or a file directly in `bench/`. An arrow is that one room imports from another, wherever
in its files, except for type checkers only. A room's floor is one more than the highest floor it imports from, so the
number of floors is the longest chain of imports. Rooms in a circle share a floor.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import networkx as nx

COMMAND = "python -m tools.structure"
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "lab-notes.md"
PICTURES = {"before": DOCS / "structure-before.svg", "now": DOCS / "structure-after.svg"}
HISTORY = DOCS / "structure.json"
COMMITS = {"before": "e7e1918"}
PACKAGES = ("bench", "methods", "datasets", "reports", "sweeps")
HEAD = "| structure | rooms | arrows | floors | circles |"

Structure = dict[str, list[str]]
"""For each room the rooms that it imports from."""

WIDTH, ROW, BOX, LEFT, TOP = 1180, 84, 26, 70, 70
COLOURS = {"file": "#ffe8a3", "folder": "#bcd9f5", "package": "#d5d5d5"}
STYLE = """\
text { font: 12px sans-serif; fill: #222 }
.title { font: bold 17px sans-serif }
.floor { fill: #777 }
.box { stroke: #555 }
path { fill: none; stroke: #9aa3ad; stroke-opacity: .4 }
.direct { stroke: #1f4e79; stroke-width: 1.4; stroke-opacity: .8 }
.circle { stroke: #c00000; stroke-width: 2; stroke-opacity: 1 }"""


def read(root: Path) -> Structure:
    """The structure of a checkout."""
    files = {_module(file.relative_to(root)): file for package in PACKAGES for file in (root / package).rglob("*.py")}
    found: dict[str, set[str]] = {_room(module, root): set() for module in files}
    for module, file in files.items():
        own = _room(module, root)
        for name in _imports(module, file):
            while name and name not in files:  # `from bench.rng import generator` is of bench.rng
                name = name.rpartition(".")[0]
            if name and _room(name, root) != own:
                found[own].add(_room(name, root))
    return {room: sorted(below) for room, below in sorted(found.items())}


def counts(structure: Structure) -> tuple[int, int, int, int]:
    """Its rooms, arrows, floors and circles."""
    graph = nx.DiGraph(structure)
    circles = sum(len(group) > 1 for group in nx.strongly_connected_components(graph))
    return len(graph), graph.number_of_edges(), len(floors(structure)), circles


def floors(structure: Structure) -> list[list[str]]:
    """The rooms of each floor, from the ground up; within one, so that arrows to the floors below are short."""
    groups = nx.condensation(nx.DiGraph(structure))
    levels = [
        [room for group in level for room in groups.nodes[group]["members"]]
        for level in nx.topological_generations(groups.reverse())
    ]
    place: dict[str, float] = {}
    for turn in range(6):  # rooms go by the mean place of what they import from, then of what imports from them
        above = {room: [other for other in structure if room in structure[other]] for room in structure}
        for level in levels if turn % 2 == 0 else levels[::-1]:
            near = structure if turn % 2 == 0 else above
            means = {room: _mean([place[other] for other in near[room] if other in place]) for room in level}
            level.sort(key=lambda room: (means[room], room))
            place |= {room: (at + 0.5) / len(level) for at, room in enumerate(level)}
    return levels


def draw(structure: Structure, title: str) -> str:
    """The picture as SVG: rooms in rows by floor, arrows downwards."""
    levels = floors(structure)
    height = TOP + ROW * len(levels)
    where = {
        room: (_across(at, len(level), floor), TOP + ROW * (len(levels) - 1 - floor) + BOX)
        for floor, level in enumerate(levels)
        for at, room in enumerate(level)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>\n{STYLE}\n</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text class="title" x="16" y="28">{escape(title)}</text>',
        *_legend(),
        *_arrows(structure, where),
    ]
    for floor, level in enumerate(levels):
        y = TOP + ROW * (len(levels) - 1 - floor) + BOX
        lines.append(f'<text class="floor" x="16" y="{y + 4}">floor {floor + 1}</text>')
        lines += [line for room in level for line in _box(_label(room), _kind(room), *where[room])]
    return "\n".join([*lines, "</svg>", ""])


def table(structures: dict[str, Structure]) -> str:
    """The numbers of each structure, in Markdown, and the rooms that came last."""
    lines = [HEAD, "|---|---:|---:|---:|---:|"]
    for name, structure in structures.items():
        lines.append(f"| {_named(name)} | {' | '.join(map(str, counts(structure)))} |")
    came = [f"`{room}`" for room in structures["now"] if room not in structures["before"]]
    return "\n".join([*lines, "", f"Rooms that came with the move and since: {', '.join(came) or 'none'}.", ""])


def structures() -> dict[str, Structure]:
    """Those of the earlier commits and of the source at hand."""
    return {**json.loads(HISTORY.read_text(encoding="utf-8")), "now": read(ROOT)}


def history() -> dict[str, Structure]:
    """The structures of the earlier commits, read from the repository."""
    found = {}
    for name, commit in COMMITS.items():
        command = ["git", "archive", commit, *PACKAGES]
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
            found[name] = read(Path(folder))
    return found


def pictures(found: dict[str, Structure]) -> dict[Path, str]:
    """What is to be in each file."""
    return {
        file: draw(found[name], f"{_named(name).capitalize()}: {_words(found[name])}")
        for name, file in PICTURES.items()
    }


def main() -> None:
    """Write the files."""
    if sys.argv[1:] == ["history"]:
        HISTORY.write_text(json.dumps(history(), indent=1) + "\n", encoding="utf-8")
    found = structures()
    for file, text in pictures(found).items():
        file.write_text(text, encoding="utf-8")
    old = rf"^{re.escape(HEAD)}\n(\|.*\n)*\n.*\n"
    PAGE.write_text(re.sub(old, table(found), PAGE.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8")


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str, root: Path) -> str:
    """E.g. `bench/engine/`, `bench/engine/lanes/`, `bench/rng.py`, `methods/`."""
    folder, *rest = module.split(".")
    while rest and (root / folder / rest[0]).is_dir():
        folder += f"/{rest.pop(0)}"
    return f"bench/{rest[0] if rest else '__init__'}.py" if folder == "bench" else f"{folder}/"


def _imports(module: str, file: Path) -> Iterator[str]:
    """The dotted names that a file imports."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            yield from (".".join([*start, *filter(None, [node.module]), alias.name]) for alias in node.names)


def _across(at: int, rooms: int, floor: int) -> float:
    """Where the middle of a room is; floors are a little aside from each other, as arrows would cover one another."""
    return LEFT + (WIDTH - LEFT) * (at + 0.5 + 0.12 * (floor % 3 - 1)) / rooms


def _arrows(structure: Structure, where: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Curves; dark where no other way leads there, on top; red within a circle."""
    groups = nx.condensation(nx.DiGraph(structure))
    of, direct = groups.graph["mapping"], nx.transitive_reduction(groups)
    drawn: dict[str, list[str]] = {"": [], "direct": [], "circle": []}
    for room, below in structure.items():
        for other in below:
            (x1, y1), (x2, y2) = where[room], where[other]
            inside = of[room] == of[other]
            kind = "circle" if inside else "direct" if direct.has_edge(of[room], of[other]) else ""
            start, end = (y1 + BOX / 2, y2 - BOX / 2) if not inside else (y1 - BOX / 2, y2 - BOX / 2)
            bend = ROW * (0.55 if not inside else -0.5)
            curve = (
                f"M{x1:.1f} {start:.1f}C{x1:.1f} {start + bend:.1f} {x2:.1f} {end - abs(bend):.1f} {x2:.1f} {end:.1f}"
            )
            drawn[kind].append(f'<path class="{kind}" d="{curve}"/>' if kind else f'<path d="{curve}"/>')
    yield from (line for lines in drawn.values() for line in lines)


def _legend() -> Iterator[str]:
    texts = {"file": "file in bench/", "folder": "folder in bench/", "package": "another folder"}
    for at, (kind, text) in enumerate(texts.items()):
        yield f'<rect class="box" x="{16 + 150 * at}" y="44" width="14" height="14" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{36 + 150 * at}" y="56">{text}</text>'
    for at, (kind, text) in enumerate({"direct": "imports", "other": "imports; other rooms lead there, too"}.items()):
        x = 466 + 110 * at
        yield f'<path class="{kind}" d="M{x} 51H{x + 30}"/><text x="{x + 36}" y="56">{text}</text>'


def _box(text: str, kind: str, x: float, y: float) -> Iterator[str]:
    width = 7.2 * len(text) + 12
    yield (
        f'<rect class="box" x="{x - width / 2:.1f}" y="{y - BOX / 2:.1f}" width="{width:.1f}" height="{BOX}" rx="4" '
        f'fill="{COLOURS[kind]}"/>'
    )
    yield f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{escape(text)}</text>'


def _kind(room: str) -> str:
    return ("folder" if room.endswith("/") else "file") if room.startswith("bench/") else "package"


def _label(room: str) -> str:
    return room.removeprefix("bench/").removesuffix(".py")


def _named(name: str) -> str:
    return f"{name} ({COMMITS[name]})" if name in COMMITS else name


def _mean(numbers: list[float]) -> float:
    return round(sum(numbers) / len(numbers), 6) if numbers else 0.5


def _words(structure: Structure) -> str:
    rooms, arrows, levels, circles = counts(structure)
    return f"{rooms} rooms, {arrows} arrows, {levels} floors, {circles} circles"


if __name__ == "__main__":
    main()
