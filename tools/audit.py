"""Every algorithm of PFLlib beside the method here, by `bench peer`: measures, and writes docs/beside-pfllib.md.

    python -m tools.audit CHECKOUT                  # all algorithms
    python -m tools.audit CHECKOUT --only FedDyn    # these again; the others stay as they are

`docs/beside-pfllib.yaml` has the arguments of each algorithm, and in words where the two part. What is measured stands
in `docs/beside-pfllib.csv`, a row for each algorithm, network and share of clients; the page's table is made of both.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bench.cli.from_pfllib import ALGORITHMS
from bench.cli.peer import pair
from bench.errors import UserError
from bench.peer.compare import beside_pfllib
from bench.plugin import load_file

DOCS = Path(__file__).parents[1] / "docs"
WORDS, MEASURED, PAGE = (DOCS / f"beside-pfllib.{suffix}" for suffix in ("yaml", "csv", "md"))
NETWORK = DOCS / "examples" / "shifts" / "norm_mlp.py"
NETWORKS: dict[str, list[str]] = {"mlp": [], "BatchNorm": ["model=norm_mlp", "model_options={width: 32}"]}
SHARES = (1.0, 0.4)
"""Of the clients: how many train in a round."""
_SETTINGS = {(network, str(share)): f"{network}, {share:.0%}" for network in NETWORKS for share in SHARES}
_BEGIN, _END = "<!-- written by python -m tools.audit -->", "<!-- end -->"


def measure(checkout: Path, algorithm: str, words: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Compare an algorithm, on each network and with each share of clients."""
    for network, settings in NETWORKS.items():
        for share in SHARES:
            row = {"algorithm": algorithm, "network": network, "share": share}
            arguments = [*words.get("arguments", "").split(), f"-jr={share}"]
            overrides = [*settings, *words.get("set", [])]
            name = words.get("algorithm", algorithm)
            arguments, cell = pair(name, 3, arguments, words.get("method", ""), overrides, [NETWORK])
            try:
                likeness = beside_pfllib(cell, Path("data"), checkout, arguments)
            except UserError as error:
                yield row | {"equal": False, "place": str(error).strip().splitlines()[-1].removeprefix(f"{checkout}: ")}
                continue
            yield row | {
                "equal": likeness.equal, "difference": f"{max(likeness.differences):.0e}",
                "tested": " ".join(likeness.models), "place": likeness.place,
                "equal under": "; ".join(likeness.equal_under),
            }  # fmt: skip


def table() -> str:
    """Write the page's table from the words and from what was measured."""
    words: dict[str, Any] = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
    measured = pd.read_csv(MEASURED, dtype=str, keep_default_na=False).groupby("algorithm", sort=False)
    heads = ["PFLlib", "`main.py`", "here", *_SETTINGS.values(), "where they part", "follows the paper"]
    equal = [sum(value == "True" for value in rows["equal"]) for _, rows in measured]
    throughout, partly = equal.count(len(_SETTINGS)), sum(0 < count < len(_SETTINGS) for count in equal)
    counts = f"Of {len(equal)} rows {throughout} are equal throughout, and {partly} more in some of their columns.\n"
    lines = [counts, f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for algorithm, rows in measured:
        row = words[str(algorithm)]
        name = row.get("algorithm", algorithm)
        method = row.get("method") or ALGORITHMS[name].method
        anchor = "" if any(f'"{method}"' in line for line in lines) else f'<a id="{method}"></a>'
        place = f"{anchor}{name}" + (f" ([asked]({row['asked']}))" if "asked" in row else "")
        options = ", ".join(f"`{option}`" for option in row.get("set", []))
        card = f"[`{method}`](methods/{method}.md)" + (f" with {options}" if options else "")
        by_setting = {(r["network"], r["share"]): r for r in rows.to_dict("records")}
        cells = [_cell(by_setting[setting]) for setting in _SETTINGS]
        parts = " ".join(row[key] for key in ("parts", "batchnorm") if key in row)
        if any(r["equal"] != "True" for r in by_setting.values()) and not row.get("proof"):
            parts += " Shown by reading only."
        given = f"`{row['arguments']}`" if row["arguments"] else ""
        lines.append(f"| {' | '.join([place, given, card, *cells, parts, row.get('follows', '')])} |")
    return "\n".join(lines)


def _cell(row: dict[Any, str]) -> str:
    return "equal" if row["equal"] == "True" else f"{float(row['difference']):.1g}" if row["difference"] else "-"


def write_page() -> None:
    """Put the table into the page, between the lines that mark its place."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(f"{_BEGIN}\n")
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{after}", encoding="utf-8")


def main() -> None:
    """Measure the algorithms that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", nargs="*", metavar="ALGORITHM")
    options = parser.parse_args()
    load_file(NETWORK)
    words = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
    rows: list[Any] = pd.read_csv(MEASURED, dtype=str).to_dict("records") if MEASURED.exists() else []
    for algorithm in options.only or words:
        rows = [row for row in rows if row["algorithm"] != algorithm]
        for row in measure(options.checkout, algorithm, words[algorithm] or {}):
            print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            rows.append(row)
        order = list(words)
        rows.sort(key=lambda row: order.index(row["algorithm"]))
        pd.DataFrame(rows).to_csv(MEASURED, index=False)
    write_page()


if __name__ == "__main__":
    main()
