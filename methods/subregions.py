"""Points of Floco's simplex: randomly drawn ones, and the clients' own, which reflect how their updates differ."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bench.ties import largest
from methods.simplex import onto_simplex

SIZES = 1000  # number of sizes of the simplex that are tried, from 1e-4 to 1
LEAST = 1e-4  # smallest distance of two points in the energy, and smallest size
NOISE = 1e-6  # spreads below this share of the largest one are rounding errors


@dataclass(frozen=True)
class Basis:
    """The map from updates to points: `mean` `[d]`, `components` `[endpoints, d]`, and the simplex's `size`."""

    mean: Tensor
    components: Tensor
    size: float

    @classmethod
    def of(cls, updates: Sequence[Tensor], endpoints: int) -> "Basis":
        """The principal components of the clients' updates, and the size at which the points have the smallest energy.

        Components along which clients do not differ, and missing ones, are 0. A component's first entry of largest
        absolute value is positive.
        """
        rows = torch.stack(list(updates)).double()
        mean = rows.mean(0)
        _, spread, found = torch.linalg.svd(rows - mean, full_matrices=False)
        found = found[spread > NOISE * spread[:1]][:endpoints]
        first = largest(found.float().abs().T, 1).T  # in the updates' precision, whose rounding the components have
        found = found * torch.where(first, found, 0.0).sum(1, keepdim=True).sign()
        components = torch.cat([found, found.new_zeros(endpoints - len(found), found.shape[1])])
        coordinates = (rows - mean) @ components.T
        tried = torch.linspace(LEAST, 1, SIZES, dtype=torch.float64).tolist()
        energies = [energy(onto_simplex(coordinates / size)) for size in tried]
        return cls(mean, components, tried[energies.index(min(energies))])

    def as_state(self) -> dict[str, Tensor | float]:
        """The fields as plain values that a server's state may hold."""
        return asdict(self)


def place(basis: Basis, updates: Sequence[Tensor]) -> list[Tensor]:
    """Each update's nearest point of the simplex, `[endpoints]`."""
    if not updates:
        return []
    rows = torch.stack(list(updates))
    coordinates = (rows.double() - basis.mean) @ basis.components.T
    return list(onto_simplex(coordinates / basis.size).to(rows))


def energy(points: Tensor) -> float:
    """Riesz energy: the sum of 1 / distance^2 over pairs of rows; it is small if the rows are far apart."""
    i, j = torch.triu_indices(len(points), len(points), 1)
    distance = (points[i] - points[j]).norm(dim=1).clamp(min=LEAST)
    return float(distance.pow(-2).sum())


def drawn_point(draw: Tensor, own: Tensor, known: Tensor, rho: Tensor) -> Tensor:
    """Turn standard normals `[endpoints + 1]` into a point.

    It is uniform in the simplex, or, if the client's own point is known, within the L1 distance rho of that.
    """
    uniform = 0.5 * torch.erfc(-draw * 0.5**0.5)
    exponential, signed = -uniform[:-1].log(), 2 * uniform[:-1] - 1
    near = own + uniform[-1] * rho * signed / signed.abs().sum()
    return torch.where(known > 0, near, exponential / exponential.sum())
