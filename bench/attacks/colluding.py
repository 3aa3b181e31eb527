"""Attacks by messages of malicious clients that know updates of others and all send the same one.

Updates are uploads minus downloads, as Blades and the papers' federated experiments have them. A round without benign
clients has the malicious ones' honest updates in their place.
"""

from statistics import NormalDist
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.attacks.attack import Attack, AttackHyper
from bench.method import hp
from bench.plugin import ATTACKS


class ALIEHyper(AttackHyper):
    """Settings of `alie`: how many standard deviations the lie is away (`z`; empty: the paper's largest)."""

    z: float | None = hp(None, allow_inf_nan=False)


@ATTACKS.register("alie")
class ALIE(Attack):
    """mu + z sigma of each number, over the malicious clients' own honest updates (Baruch, Baruch and Goldberg 2019, "A
    Little Is Enough", Algorithm 3).

    Of n clients m are malicious; s = floor(n / 2 + 1) - m benign ones have to be further from the mean than the lie, so
    that z is the largest number with Phi(z) <= (n - m - s) / (n - m). One malicious client alone has no sigma, and is
    honest.
    """

    Hyper = ALIEHyper
    colludes = True

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        m, clients = len(malicious), len(malicious) + len(benign)
        if m == 1:
            return malicious
        z = self.hp.z
        if z is None:
            z = largest_z(clients, m)
        return (malicious.mean(0) + malicious.std(0, correction=0).mul(z)).expand_as(malicious)


def largest_z(clients: int, malicious: int) -> float:
    """The z of `alie` for so many clients; 0 where the malicious ones are all, or enough without a benign one."""
    benign, supporters = clients - malicious, clients // 2 + 1 - malicious
    if not 0 < supporters < benign:
        return 0.0
    return NormalDist().inv_cdf((benign - supporters) / benign)


class MinMaxHyper(AttackHyper):
    """Settings of `min_max`: the direction of the lie; the inverse standard deviations, the inverse unit vector, or the
    inverse signs of the benign mean."""

    direction: Literal["std", "unit", "sign"] = hp("std", static=True)


@ATTACKS.register("min_max")
class MinMax(Attack):
    """mean + gamma p of the benign updates u_i, with the largest gamma such that max_i |mean + gamma p - u_i| <= max_ij
    |u_i - u_j| (Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine", equation 5).

    Each i bounds gamma by the larger root of a quadratic equation, so that no search is needed.
    """

    Hyper = MinMaxHyper
    colludes = True

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        known = benign if len(benign) else malicious
        mean = known.mean(0)
        p = self._direction(known, mean)
        length = p @ p
        if length == 0:  # one client, or equal ones: there is no room for a lie
            return mean.expand_as(malicious)
        away = mean - known
        largest = torch.stack([torch.linalg.vector_norm(known - row, dim=1).max() for row in known]).max()
        along, room = away @ p, largest**2 - (away * away).sum(1)
        gamma: Tensor = ((-along + (along**2 + length * room).clamp(min=0).sqrt()) / length).min()
        return (mean + gamma * p).expand_as(malicious)

    def _direction(self, known: Tensor, mean: Tensor) -> Tensor:
        match self.hp.direction:
            case "std":
                return -known.std(0, correction=0)
            case "unit":
                length: Tensor = torch.linalg.vector_norm(mean)
                return -mean / length.clamp(min=torch.finfo(mean.dtype).tiny)
            case _:
                return -mean.sign()


class IPMHyper(AttackHyper):
    """Settings of `ipm`: `epsilon`."""

    epsilon: float = hp(0.5, gt=0, allow_inf_nan=False)


@ATTACKS.register("ipm")
class IPM(Attack):
    """-epsilon times the mean of the benign updates (Xie, Koyejo and Gupta 2019, "Fall of Empires", section 4).

    The mean of n updates, m of them lies, turns round where epsilon > (n - m) / m; robust rules are fooled by a small
    one, which they do not tell from the others.
    """

    Hyper = IPMHyper
    colludes = True

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        known = benign if len(benign) else malicious
        return known.mean(0).mul(-self.hp.epsilon).expand_as(malicious)
