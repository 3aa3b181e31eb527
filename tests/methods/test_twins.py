"""Every client twice, with the same samples, changes nothing: all shares n_i / n of a pair are what one client's were.

With full batches and all clients in every round nothing is drawn at random. A mean over the wrong number of clients, or
a sum in place of a mean, is found by it whatever the paper's equations look like.
"""

from typing import Any

import pytest

from bench.conformance.checks import FULL
from bench.conformance.toy_problem import ROUNDS, problem, toy_federation
from bench.data import Partition
from bench.federation.federation import Federation
from bench.plugin import METHODS
from tests.engine.problems import METHOD_NAMES, ONE_OF_A_KIND, QUICK, generic, personal

BY_NATURE = {
    "apple": "coefficients begin at n_j / n, which is halved, and take steps of the same size",
    "fd": "a client's own mean is left out of its target, but not that of the other of its pair",
    "fedap": "a client's own share is lam, and the other of its pair is one of the others",
    "fedasync": "every upload makes a version, and there are twice as many",
    "fedgc": "heads are corrected against the rows of all other clients, which are summed up",
    "fedmtl": "the ridge I/N of the relation is not that of N pairs",
    "ktpfl": "coefficients begin at 1/N, which is halved, and take steps of the same size",
    "pfedgraph": "the graph is pulled to n_j / n by a squared distance, which is halved",
    "pgfed": "coefficients begin at 1/M, which is halved, and take steps of the same size",
    "pgfed_ce": "as pgfed",
    "pgfedmo": "as pgfed",
}
FIXED: dict[str, dict[str, Any]] = {**QUICK, "pefll": {"embedding": 2}}  # its default grows with the number of clients
NAMES = [name for name in METHOD_NAMES if METHODS.get(name).symmetric or name in BY_NATURE]
QUICK_ONES = ONE_OF_A_KIND - {"comet"} - BY_NATURE.keys()


def advanced(name: str, partition: Partition) -> Federation:
    federation = toy_federation(
        name, problem=(problem()[0], partition), clients=len(partition.train), hp=FIXED.get(name, {}), **FULL
    )
    for _ in range(ROUNDS):
        federation.advance()
    return federation


def largest_gap(name: str) -> float:
    """Between models of some rounds with every client once and twice."""
    once = problem()[1]
    twice = Partition(once.train * 2, once.validation * 2, once.test * 2, once.global_test)
    one, two = advanced(name, once), advanced(name, twice)
    gaps = [generic(one) - generic(two)]
    if one.method.trains != "gm":
        models, pairs = personal(one), personal(two)
        gaps += [w - pairs[i] for i, w in models.items()] + [w - pairs[i + len(once.train)] for i, w in models.items()]
    return max(float(gap.abs().max()) for gap in gaps)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK_ONES else [pytest.mark.long]) for name in NAMES],
)
def test_every_client_twice_changes_nothing_unless_their_number_counts_by_nature(name: str) -> None:
    assert (largest_gap(name) < 1e-8) == (name not in BY_NATURE)
