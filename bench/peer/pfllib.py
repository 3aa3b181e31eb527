"""PFLlib's `main.py`, unchanged, on samples, batches, selections and initial values that come from a cell.

It has a process of its own (`python -m bench.peer.pfllib CHECKOUT FOLDER -- ARGUMENTS OF MAIN.PY`), because it changes
torch and scikit-learn for the whole process. `OUTSIDE` lists what is not the checkout's own code.
"""

import ast
import importlib.util
import json
import os
import runpy
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.engine.batches import DrawAddress, draw_batches
from bench.plugin import load_file
from bench.requests import Feed

OUTSIDE = (
    "each client's samples, in float64, those last that it holds out",
    "the batches of each epoch, with the last, smaller one that PFLlib drops",
    "the clients of each round",
    "the network and its initial values, and those of further networks and heads of the same shapes",
    "one batch for all tests of a client; no AUC is computed and no file of results is written",
)
"""What PFLlib's own code does not do here."""

DATA, NETWORK, FURTHER, PLAN, CAPTURED = "data.npz", "network.pt", "further.pt", "plan.json", "captured.npz"
"""Files in the folder: the first four are given, the last is the result."""

_BUILT = "Mclr_Logistic"
"""The network that `main.py` builds for `-m MLR`; ours is built in its place."""


class WithFc(nn.Module):
    """A network whose head is called `fc`, as `main.py` expects."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.body, head = module, module.head
        module.head = nn.Identity()
        self.fc = head

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.body.features(x))  # type: ignore[operator]
        return outputs


class Recorder:
    """Gives PFLlib what comes from outside, and keeps what it computes.

    Attributes:
        captured: by name, in the order of computation: outputs of each test, `output/ROUND/CLIENT/NUMBER` (`distance`
            if the nearest class is predicted), and the trained tensors after each local step, `step/...`.
        steps: local steps of all clients since they were selected last.
    """

    def __init__(self, folder: Path) -> None:
        self.captured: dict[str, Any] = {}
        self.plan: dict[str, Any] = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        with np.load(folder / DATA) as data:
            self._data = dict(data)
        self._further: dict[int, tuple[list[list[Tensor]], list[list[Tensor]]]] = torch.load(folder / FURTHER)
        self._round = self._client = -1
        self._part = "train"
        self._testing = self._passed = False
        self.steps = self._trainings = 0
        self._passes: Counter[int] = Counter()
        self._clients: dict[int, Any] = {}

    def trained(self, client: int) -> tuple[bool, ...]:
        """Tell for each tensor of a client's model whether it is trained now; where this changes, a training begins."""
        model = getattr(self._clients.get(client), "model", None)
        return tuple(p.requires_grad for p in model.parameters()) if isinstance(model, nn.Module) else ()

    def samples(self, dataset: str, client: int, is_train: bool = True, few_shot: int = 0) -> list[Any]:
        """A client's samples, with the signature of PFLlib's `read_client_data`."""
        self._client, self._part = client, "train" if is_train else "test"
        x, y = (torch.from_numpy(self._data[f"{self._part}/{client}/{name}"]) for name in "xy")
        return list(zip(x, y, strict=True))

    def select(self, server: Any) -> list[Any]:
        """The clients of the next round; of the same one if nobody has trained since they were selected last.

        APPLE's clients take steps by hand. FedPCL's take none in their first round, but see their training samples more
        often than they are tested.
        """
        trainings = sum(client.train_time_cost["num_rounds"] for client in server.clients)
        seen = any(passes > 0 for passes in self._passes.values())
        self._round += self.steps > 0 or seen or trainings > self._trainings or self._round < 0
        self.steps, self._passed, self._trainings = 0, False, trainings
        self._passes.clear()
        self._clients = {client.id: client for client in server.clients}
        if self._round == 0:
            for client in server.clients:
                for module in vars(client).values():
                    if isinstance(module, nn.Module):
                        others, heads = self._further[client.id]
                        fill(module.modules(), others)
                        fill([module], heads)
        ids = self.plan["selected"][min(self._round, self.plan["rounds"] - 1)]
        server.current_num_join_clients = len(ids)
        return [client for client in server.clients if client.id in ids]

    def loader(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **_: Any) -> "Loader":
        """The batches of the samples that were asked for last, in place of torch's `DataLoader`."""
        return Loader(self, dataset, batch_size, self._client, self._part, shuffle=shuffle)

    def batches(self, client: int, n: int, width: int, epoch: int) -> Iterator[tuple[Any, int]]:
        """Positions and sizes of a client's batches in an epoch of this round."""
        self._client = client
        self._passes[client] += 1
        address = DrawAddress(self.plan["seed"], max(0, self._round), client)
        norm = self.plan["batch_statistics"]
        steps = draw_batches(Feed(), n, width, 1, address, batch_statistics=norm).per_epoch
        drawn = draw_batches(Feed(), n, width, steps * (epoch + 1), address, batch_statistics=norm)
        yield from list(zip(drawn.positions, drawn.sizes, strict=True))[-steps:]

    def begin_test(self, client: int) -> None:
        """Take the next outputs for those of a client's tests."""
        self._client, self._testing = client, True
        self._passes[client] -= 1

    def keep_outputs(self, values: Tensor, kind: str) -> None:
        """Keep the values of which the class is about to be taken, if they are a test's."""
        if self._testing and values.ndim == 2:
            self._testing = False
            trained = max(0, self._round + self._passed)  # rounds; most methods test at the beginning of the next one
            self._keep(kind, min(self.plan["rounds"], trained), values)

    def keep_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keep the trained values after a local step."""
        trained = [p.detach().reshape(-1) for group in optimizer.param_groups for p in group["params"]]
        self._keep("step", self._round, torch.cat(trained))
        self.steps += 1

    def end_pass(self, steps: int) -> None:
        """Take a pass over a client's samples for training if there have been more steps than at its beginning.

        A single step right before a test, as `PerAvg` makes it, is none.
        """
        self._passed |= self.steps > steps

    def _keep(self, kind: str, round: int, values: Tensor) -> None:
        place = f"{kind}/{round}/{self._client}/"
        number = sum(name.startswith(place) for name in self.captured)
        self.captured[f"{place}{number}"] = values.detach().clone().numpy()


class Loader:
    """Batches of one client's samples; every pass over it is the next epoch of a training, or the first, unshuffled."""

    def __init__(
        self, recorder: Recorder, dataset: Any, batch_size: int, client: int, part: str, *, shuffle: bool
    ) -> None:
        self.dataset, self._shuffle = dataset, shuffle
        self._recorder, self._width, self._client, self._part = recorder, batch_size, client, part
        self._epoch, self._trained = 0, recorder.trained(client)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self._width)

    def __iter__(self) -> Iterator[Any]:
        x, y = (torch.stack(values) for values in zip(*self.dataset, strict=True))
        if self._part == "test":
            self._recorder.begin_test(self._client)
            yield x, y
            return
        trained = self._recorder.trained(self._client)
        if trained != self._trained:
            self._trained, self._epoch = trained, 0
        epoch, self._epoch, steps = self._epoch, self._epoch + self._shuffle, self._recorder.steps
        for at, size in self._recorder.batches(self._client, len(x), self._width, epoch):
            yield x[at[:size]], y[at[:size]]
        self._recorder.end_pass(steps)


def fill(modules: Iterable[nn.Module], networks: list[list[Tensor]]) -> None:
    """Copy each network into a module that has its shapes; of equal shapes, the first into the first module."""
    left = list(networks)
    for module in modules:
        parameters = list(module.parameters())
        shapes = [p.shape for p in parameters]
        for k, network in enumerate(left):
            if [tensor.shape for tensor in network] == shapes:
                with torch.no_grad():
                    for parameter, values in zip(parameters, left.pop(k), strict=True):
                        parameter.copy_(values)
                break


class AbsentPackage(types.ModuleType):
    """Stands in for a package that is not installed: it can be imported from, and nothing of it can be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: Any, **__: Any) -> None:
            raise ImportError(f"{self.__name__} is not installed: pip install {self.__name__}")

        return refuse


def absent_packages(system: Path) -> list[str]:
    """Packages that the code imports and that are not installed; methods that use none of them run all the same."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(system.rglob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    packages = {name.partition(".")[0] for name in names} - {path.stem for path in system.iterdir()}
    return sorted(name for name in packages if importlib.util.find_spec(name) is None)


def replace_parts(recorder: Recorder, system: Path, folder: Path) -> None:
    """Put what comes from outside in its place."""
    import sklearn.metrics

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    sys.path.insert(0, str(system))
    for name in absent_packages(system):
        sys.modules[name] = AbsentPackage(name)
    torch.utils.data.DataLoader = recorder.loader  # type: ignore[misc, assignment]
    sklearn.metrics.roc_auc_score = lambda *_, **__: 0.0
    torch.argmax = _watched(torch.argmax, recorder, "output")
    torch.argmin = _watched(torch.argmin, recorder, "distance")
    register_optimizer_step_post_hook(recorder.keep_step)
    names = "utils.data_utils utils.mem_utils utils.result_utils flcore.servers.serverbase flcore.trainmodel.models"
    modules: list[Any] = [importlib.import_module(name) for name in names.split()]
    data, memory, results, server, models = modules
    data.read_client_data = server.read_client_data = recorder.samples
    memory.MemReporter.report = results.average_data = lambda *_, **__: None
    server.Server.select_clients = lambda self: recorder.select(self)
    server.Server.save_results = server.Server.save_global_model = lambda *_: None
    if recorder.plan["classes"]:
        average: Any = importlib.import_module("flcore.servers.serveravg")
        average.FedAvg = _own_server(server.Server, recorder.plan["classes"])
    setattr(models, _BUILT, lambda *_, **__: WithFc(torch.load(folder / NETWORK, weights_only=False)))


def _own_server(base: type, files: list[str]) -> Any:
    """The server's class of a user's file; the client's file is imported first, as a module of PFLlib's."""
    module = types.ModuleType("")
    for file, package in zip(reversed(files), ("flcore.clients", "flcore.servers"), strict=True):
        name = f"{package}.{Path(file).stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    servers = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
    return next(value for value in servers if value.__module__ == module.__name__)


def _watched(function: Any, recorder: Recorder, kind: str) -> Any:
    def watched(values: Tensor, *arguments: Any, **options: Any) -> Any:
        recorder.keep_outputs(values, kind)
        return function(values, *arguments, **options)

    return watched


def main(checkout: Path, folder: Path, arguments: list[str]) -> None:
    """Run a checkout's `main.py`, and write what was captured into the folder."""
    recorder = Recorder(folder)
    for file in recorder.plan["plugins"]:  # the network's class may be in one
        load_file(file)
    system = checkout / "system"
    replace_parts(recorder, system, folder)
    scratch = folder / "scratch" / "system"  # it writes here and beside
    scratch.mkdir(parents=True)
    os.chdir(scratch)
    sys.argv = ["main.py", "-dev", "cpu", "-m", "MLR", *arguments]
    try:
        runpy.run_path(str(system / "main.py"), run_name="__main__")
    finally:
        np.savez(folder / CAPTURED, **recorder.captured)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[4:])
