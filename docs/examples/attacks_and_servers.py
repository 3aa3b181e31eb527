"""What each attack does to FedAvg on digits, and what robust servers win back (docs/lab-notes.md has the table).

python docs/examples/attacks_and_servers.py [--servers NAME ...]: trains eight rounds with 20 clients, six of them
malicious, and prints the benign clients' accuracies of the generic model in percent, of one seed.
"""

import argparse
from typing import Any

from bench.config.grid import load_grid
from bench.engine.recorded_steps import GraphCache
from bench.federation.federation import Federation
from reports.reading.names import setting_text

ROUNDS, SHARE = 8, 0.3
HONEST: dict[str, Any] = {"name": "honest"}
SIGN_FLIP: dict[str, Any] = {"name": "sign_flip", "factor": 4.0}
MIN_MAX: dict[str, Any] = {"name": "min_max"}
ATTACKS: list[dict[str, Any]] = [
    HONEST, {"name": "label_flip"}, {"name": "noise"}, SIGN_FLIP, {"name": "scale", "factor": 30.0}, {"name": "alie"},
    {"name": "alie", "z": 4.0}, MIN_MAX, {"name": "min_max", "direction": "unit"}, {"name": "ipm", "epsilon": 4.0},
    {"name": "backdoor", "boost": 10.0},
]  # fmt: skip
SERVERS: dict[str, dict[str, Any]] = {
    "median": {}, "trimmed_mean": {"share": SHARE}, "krum": {"share": SHARE}, "multi_krum": {"share": SHARE},
    "geometric_median": {}, "norm_clip": {"norm": 1.0}, "centered_clip": {"tau": 1.0}, "bulyan": {"share": 0.2},
}  # fmt: skip
_RECORDINGS = GraphCache()


def accuracy(attack: dict[str, Any], server: str | None = None) -> float:
    """Accuracy in percent of FedAvg's model on the benign clients' tests after the last round."""
    grid = {
        "methods": ["fedavg"], "alphas": [0.5], "clients": 20, "model": "mlp", "model_options": {"hidden": 50},
        "lr": 0.1, "rounds": ROUNDS, "eval_every": ROUNDS, "seeds": [0], "attack": {**attack, "share": SHARE},
        "server": server and {"name": server, **SERVERS[server]},
    }  # fmt: skip
    federation = Federation.of(load_grid(grid).cells[0], recordings=_RECORDINGS)
    for _ in range(ROUNDS):
        federation.advance()
    wanted = ("gm", "benign", "test", "accuracy")
    rows = federation.evaluate().metrics
    return 100 * next(r["value"] for r in rows if (r["metric"], r["mean"], r["split"], r["quantity"]) == wanted)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", nargs="*", default=list(SERVERS), choices=SERVERS)
    options = parser.parse_args()
    print("| attack of six clients | mean |\n|---|---:|")
    for attack in ATTACKS:
        print(f"| {setting_text('attack', attack)} | {accuracy(attack):.1f} |", flush=True)
    print("\n| server | honest | sign_flip factor=4 | min_max |\n|---|---:|---:|---:|")
    for server in options.servers:
        values = [f"{accuracy(attack, server):.1f}" for attack in (HONEST, SIGN_FLIP, MIN_MAX)]
        print(f"| {' '.join([server, *(setting_text(*o) for o in SERVERS[server].items())])} | {' | '.join(values)} |")


if __name__ == "__main__":
    main()
