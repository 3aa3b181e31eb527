"""What SCD's printed tables say of generic methods: their personalized accuracy less their generic one, in points.

    python docs/examples/scd_published.py

By the paper's metric (Appendix B) both are expected to be the same number: one model's accuracy on local tests with the
clients' own class mix, weighted by the clients' sizes, is its accuracy on the mix of all clients, which is the test
set's (Remark 4.1 derives these cells from the generic model).
"""

from reports.published.comparison import PublishedTable, published_table

GENERIC = ("fedavg", "fedprox", "feddyn", "fedgen", "fedavgm")


def main() -> None:
    """Print a line for each method and alpha of Tables 1 and 2, and the span of each table."""
    for name in ("scd_t1", "scd_t2"):
        found = gaps(published_table(name))
        for (method, alpha), gap in found.items():
            print(f"{name} {method}, alpha {alpha:g}: {gap:+.2f}")
        print(f"{name}: from {min(found.values()):+.2f} to {max(found.values()):+.2f}")


def gaps(table: PublishedTable) -> dict[tuple[str, float], float]:
    """PM less GM of the methods that train no personalized model, by method and alpha."""
    means = {(row.method, float(row.axes["alpha"]), row.metric): row.mean for row in table.rows}
    return {
        (method, alpha): pm - means[method, alpha, "GM"]
        for (method, alpha, metric), pm in means.items()
        if method in GENERIC and metric == "PM"
    }


if __name__ == "__main__":
    main()
