"""The simulated clock: seconds of a program's work and messages, from profiles of devices and networks."""

from collections.abc import Mapping

from bench.engine.programs import Work
from bench.federation.traffic import Size
from bench.profiles import Amount, Profile, Spread
from bench.rng import generator


class Clock:
    """Seconds of computing and of messages, per client; all draws by (seed, client) or (seed, client, round).

    Args:
        archs: each client's architecture.
        delays: by client, the number of ticks by which its answer is later than the others' (tick trigger only); a
            tuple: in its first round, its second and so on, in turn.
    """

    def __init__(
        self,
        profile: Profile,
        seed: int,
        archs: Mapping[int, str],
        delays: Mapping[int, int | tuple[int, ...]],
    ) -> None:
        self._profile = profile
        self._seed = seed
        self._delays = delays
        self._speed = {i: self._drawn(profile.samples_per_second, i, "speed") for i in archs}
        self._uplink = {i: self._drawn(profile.uplink, i, "uplink") for i in archs}
        self._downlink = {i: self._drawn(profile.downlink, i, "downlink") for i in archs}
        for i, arch in archs.items():
            self._speed[i] *= profile.models.get(arch, 1.0)
        for i in self._slow(sorted(archs)):
            assert profile.slow_clients is not None
            self._speed[i] /= profile.slow_clients.factor

    def work(self, client: int, work: Work, round: int) -> float:
        """Seconds that a client's work takes in a round."""
        slow = self._profile.slow_rounds
        unlucky = slow is not None and self._chance("slow round", client, round) < slow.probability
        return work.samples / self._speed[client] * (slow.factor if slow is not None and unlucky else 1.0)

    def up(self, client: int, size: Size) -> float:
        """Seconds that a client's upload of this size takes."""
        return self._profile.latency + (size.main + size.buffers) / self._uplink[client]

    def down(self, client: int, size: Size) -> float:
        """Seconds that a client's download of this size takes."""
        return self._profile.latency + (size.main + size.buffers) / self._downlink[client]

    def drops_out(self, client: int, round: int) -> bool:
        """Whether a client takes no part in a round for which it was selected."""
        return self._profile.dropout > 0 and self._chance("dropout", client, round) < self._profile.dropout

    def delay(self, client: int, rounds: int) -> int:
        """Ticks by which a client's answer is late, in the round that it starts after `rounds` others."""
        delays = self._delays.get(client, 0)
        return delays[rounds % len(delays)] if isinstance(delays, tuple) else delays

    def _chance(self, what: str, client: int, round: int) -> float:
        return float(generator("clock", what, self._seed, client, round).random())

    def _drawn(self, amount: Amount, client: int, what: str) -> float:
        if isinstance(amount, Spread):
            rng = generator("clock", what, self._seed, client)
            return amount.median * float(rng.lognormal(sigma=amount.sigma))
        return amount[client % len(amount)] if isinstance(amount, tuple) else amount

    def _slow(self, clients: list[int]) -> list[int]:
        slow = self._profile.slow_clients
        if slow is None:
            return []
        members = generator("clock", "slow clients", self._seed).permutation(clients)[
            : round(slow.share * len(clients))
        ]
        return sorted({int(i) for i in members} | (set(slow.clients) & set(clients)))
