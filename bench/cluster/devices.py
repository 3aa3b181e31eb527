"""Run one cell on several devices: the actors, each with an engine of its own, and the handle that the cell uses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from bench.cluster.connect import actor_options, last_line
from bench.cluster.requirements import Needs, check_node, data_root, provide
from bench.cluster.wire import PackedValue, Wire
from bench.data import Dataset
from bench.engine.team import Assignment, HelperAnswer, SharedState, serve
from bench.errors import Lost, UserError
from bench.federation.cell_data import load_all, read_data
from bench.runs.cell_federation import build
from bench.runs.cell_options import Options
from bench.settings import Settings


class DeviceWorker:
    """An actor that has an engine for the present cell. It builds a whole federation but uses only its engine."""

    def ready(self, needs: Needs) -> tuple[str, str, list[tuple[str, str]]]:
        """Check the node and return its id, and the two values of `check_node`."""
        self._needs = needs
        return ray.get_runtime_context().get_node_id(), *check_node(needs)

    def provide(self, name: str, options: str, dataset: Dataset) -> None:
        """Receive a data set that is missing on this node."""
        provide(name, options, dataset)

    def begin(self, settings: Settings, options: Options) -> dict[str, Any] | str:
        """Build the cell's engine and return the recorded path, or a message that says what is wrong."""
        try:
            federation = build(settings, options, load_all(settings, data_root(self._needs.data_root)))
        except UserError as error:
            return str(error)
        self._engine = federation.engine
        self._wire = Wire(self._engine.device_data.home, near=False)
        return dict(federation.path)

    def answer(self, packed: PackedValue) -> PackedValue:
        """Do the work that a message describes, and return the result, packed too."""
        assignment, state = self._wire.unpack(packed)
        return self._wire.pack(serve(self._engine, assignment, state))


class Devices:
    """The other devices of a cell's worker (`bench.engine.team.Helpers`).

    Args:
        count: number of other devices; they take the places after the worker's own in its placement group.
        each: resources of one device, by Ray's names.
        needs: what every node must have.
    """

    def __init__(self, count: int, each: Mapping[str, float], needs: Needs) -> None:
        options = {"num_cpus": each["CPU"], "num_gpus": each["GPU"], "memory": each["memory"]}
        options |= {**actor_options(), "max_concurrency": 1}
        group = get_current_placement_group()
        assert group is not None
        self._needs = needs
        self._actors: list[Any] = []
        for place in range(1, 1 + count):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
            self._actors.append(ray.remote(DeviceWorker).options(scheduling_strategy=strategy, **options).remote())
        self._ready = [actor.ready.remote(needs) for actor in self._actors]
        self._wires: list[Wire] = []

    def __len__(self) -> int:
        return len(self._actors)

    def start_cell(self, settings: Settings, options: Options, path: Mapping[str, Any]) -> "Devices":
        """Start working on a cell. Its recorded path must be the same on all devices, or its bytes would differ.

        Raises:
            UserError: a device cannot build the cell or has another recorded path.
        """
        self._wait_until_ready()
        begun = [actor.begin.remote(settings, options) for actor in self._actors]
        for k, reference in enumerate(begun):
            built = self._get(k, reference)
            if isinstance(built, str):
                raise UserError(f"{self._name(k)}: {built}")
            if built != path:
                other = ", ".join(f"{key} {path[key]} -> {built[key]}" for key in path if path[key] != built[key])
                raise UserError(f"{self._name(k)} has another recorded path ({other}): give a cell devices of one kind")
        home = torch.device("cpu") if path["models"] == "cpu" else torch.device(path["models"])
        self._wires = [Wire(home, near=True) for _ in self._actors]
        return self

    def begin(self, assignments: Sequence[Assignment | None], state: SharedState) -> list[Callable[[], HelperAnswer]]:
        """Send work to the devices, and return one function per device that waits for its answer."""
        waits = []
        for k, assignment in enumerate(assignments):
            if assignment:
                packed = self._wires[k].pack((assignment, state))
                waits.append(self._waiting(k, self._actors[k].answer.remote(packed)))
        return waits

    def _waiting(self, k: int, reference: Any) -> Callable[[], HelperAnswer]:
        def wait() -> HelperAnswer:
            answer: HelperAnswer = self._wires[k].unpack(self._get(k, reference))
            return answer

        return wait

    def _wait_until_ready(self) -> None:
        """Wait until all devices are ready, and send them the data that are missing there."""
        ready, self._ready = self._ready, []
        for k, reference in enumerate(ready):
            node, wrong, missing = self._get(k, reference)
            if wrong:
                raise UserError(f"{self._name(k)} on node {node}: {wrong}")
            for name, options in missing:
                data = ray.put(read_data(name, options, data_root(self._needs.data_root)))
                self._get(k, self._actors[k].provide.remote(name, options, data))

    def _get(self, k: int, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayTaskError:
            raise
        except RayError as error:
            raise Lost(f"{self._name(k)} was lost: {last_line(error)}") from None

    def _name(self, k: int) -> str:
        return f"device {k + 2} of {1 + len(self._actors)}"
