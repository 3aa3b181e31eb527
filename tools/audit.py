"""Every algorithm of PFLlib beside the method here, by `bench peer`, measured.

    python -m tools.audit CHECKOUT                  # all algorithms
    python -m tools.audit CHECKOUT --only FedDyn    # these again; the others stay as they are

`docs/beside-pfllib.yaml` has the arguments of each algorithm, and in words where the two part. What is measured stands
in `docs/beside-pfllib.csv`: a row for each algorithm, network and share of clients.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bench.cli.peer import pair
from bench.errors import UserError
from bench.peer.compare import beside_pfllib
from bench.plugin import load_file

DOCS = Path(__file__).parents[1] / "docs"
WORDS, MEASURED, PAGE = (DOCS / f"beside-pfllib.{suffix}" for suffix in ("yaml", "csv", "md"))
NETWORK = DOCS / "examples" / "shifts" / "norm_mlp.py"
NETWORKS = {"mlp": [], "BatchNorm": ["model=norm_mlp", "model_options={width: 32}"]}
SHARES = (1.0, 0.4)
"""Of the clients: how many train in a round."""


def measure(checkout: Path, algorithm: str, words: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Compare an algorithm, on each network and with each share of clients."""
    for network, settings in NETWORKS.items():
        for share in SHARES:
            row = {"algorithm": algorithm, "network": network, "share": share}
            arguments = [*words.get("arguments", "").split(), f"-jr={share}"]
            overrides = [*settings, *words.get("set", [])]
            arguments, cell = pair(algorithm, 3, arguments, words.get("method", ""), overrides, [NETWORK])
            try:
                likeness = beside_pfllib(cell, Path("data"), checkout, arguments)
            except UserError as error:
                yield row | {"equal": False, "place": str(error).strip().splitlines()[-1]}
                continue
            yield row | {
                "equal": likeness.equal, "difference": f"{max(likeness.differences):.0e}",
                "tested": " ".join(likeness.models), "place": likeness.place,
                "equal under": "; ".join(likeness.equal_under),
            }  # fmt: skip


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


if __name__ == "__main__":
    main()
