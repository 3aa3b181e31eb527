"""Every method in one table: `python docs/examples/methods_table.py > docs/methods/README.md`.

Paper and year come from its card, what it needs from its class, what it was held against from docs/audit.md. What
travels is measured: bytes down and up for each client in the second round of a small cell, in sizes of its model.
"""

import re
from pathlib import Path

import bench
from bench.plugin import METHODS

DOCS = Path(__file__).parents[1]
TRAINS = {"gm": "GM", "pm": "PM", "both": "GM, PM"}
HEAD = """# The methods

*For everyone who chooses methods to compare. After this page you know what each one trains, sends and needs, and what
its code was held against.*

`python docs/examples/methods_table.py` makes this page. Each name leads to the method's card.

| column | meaning |
|---|---|
| trains | GM: a generic model; PM: personalized ones. What it does not train is derived, in brackets in all tables |
| down, up | what a client receives and sends in a round, in sizes of the model (an MLP of 64 units on the digits) |
| needs | public samples; all clients in every round; adapters. *Mixes*: clients may have different architectures |
| held against | as [audit.md](../audit.md) explains |

## All methods

| method | paper | trains | down | up | needs | held against |
|---|---|---|---:|---:|---|---|
"""
AUDIT = r"^\| `(\w+)` \| \[(\S+)\]\S+ \| ([^|]+) \| ([^|]+) \| [^|]+ \| ([^|]+) \|"


def main() -> None:
    """Print the page."""
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    audit = {row[0]: row[1:] for row in re.findall(AUDIT, page, re.M)}
    lines = []
    for name in METHODS.names():
        card, reference, identities, outside = audit[name]
        down, up = traffic(name)
        held = [reference, identities, outside.replace("agreed to 1e-9", "two audits")]
        against = "; ".join(text for text in held if text != "–")
        row = (f"[`{name}`]({card})", paper(card), TRAINS[METHODS.get(name).trains], down, up, needs(name), against)
        lines.append("| " + " | ".join(row) + " |")
    print(HEAD + "\n".join(lines))


def paper(card: str) -> str:
    """The card's paper as `First author et al., VENUE YEAR`."""
    found = re.search(r"\*\*Papers?\.\*\*(.*?)\n\n", (DOCS / "methods" / card).read_text(encoding="utf-8"), re.S)
    text = " ".join(found[1].split()) if found else ""
    match = re.match(r'(?P<authors>[^"]+?), "[^"]+",? (?P<where>[^,.:]*?\b\d{4})', text)
    if not match:
        return text.partition(", Algorithm")[0].partition(".")[0] or "–"
    authors = re.split(r", | and ", match["authors"].removesuffix(" et al."))
    several = len(authors) > 2 or "et al." in match["authors"]
    names = f"{authors[0]} et al." if several else " and ".join(authors)
    return f"{names}, {match['where']}"


def needs(name: str) -> str:
    """What its class says."""
    method = METHODS.get(name)
    found = (
        [f"adapters: {method.adapter}"] * bool(method.adapter)
        + ["public samples"] * method.public
        + ["all clients"] * method.everyone
        + ["mixes"] * method.mixes_models
    )
    return ", ".join(found) or "–"


def traffic(name: str) -> tuple[str, str]:
    """Bytes down and up of a client in the second round over those of its model."""
    settings = bench.Settings(
        method=name,
        clients=4,
        alpha=1.0,
        rounds=2,
        model_options={"hidden": 64},
        partition_options={"shares": [0.2, 0.1, 0.2]},
        public={"name": "digits", "size": 100},
        adapters=METHODS.get(name).adapter or None,
    )
    federation = bench.Federation.of(settings)
    for _ in range(settings.rounds):
        federation.advance()
    row = federation.ledger[-1]
    model = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    down, up = (row[way] / settings.clients / model for way in ("down_receivers", "up"))
    return f"{down:.2f}", f"{up:.2f}"


if __name__ == "__main__":
    main()
