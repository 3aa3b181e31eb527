"""The price of personalisation: 12 methods on digits, their personalized models on everybody's and on corrupted tests.

python docs/examples/price_of_personalisation.py [--seeds 5] [--rounds 30] [--out runs/price]: trains, scores the models
of the reported rounds on further tests, makes the report, and prints the table and the pairs of methods whose order a
test turns round. Another call goes on.
"""

import argparse

import bench
from reports.page.further_tests import further_table, further_tests, reversals
from reports.reading.load import load
from reports.tables.table import to_markdown

METHODS = [
    "fedavg", "fedprox", "local", "finetune", "ditto", "apfl", "fedper", "fedrep", "fedbabu", "pfedme", "fedrod", "scd",
]  # fmt: skip


def main() -> None:
    """Run, score, report and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", default="runs/price")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    options = parser.parse_args()
    grid = {
        "name": "price of personalisation", "methods": options.methods, "alphas": [0.1], "clients": 10,
        "seeds": list(range(options.seeds)), "rounds": options.rounds, "model": "mlp", "lr": 0.1,
        "tests": ["global", "others", {"name": "corrupted", "severity": 3}],
    }  # fmt: skip
    run = bench.run(grid, out=options.out, tracking=False)
    page = bench.report(run.path)
    store = load([run])
    tested = further_tests(store)
    print(to_markdown(further_table(store, tested)))
    print(f"{page.parent / 'figures' / 'price_of_personalisation.svg'} is the picture; order turned round:")
    print("\n".join(reversals(store, tested)) or "no pair")


if __name__ == "__main__":
    main()
