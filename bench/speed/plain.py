"""FedAvg written in the style of the field's public libraries, as a reference for `bench speed`.

Each client has its own module, optimizer and DataLoaders, and clients train one after another. Evaluation uses the test
and the training samples, in batches of the training size. Frozen layers compute in every step. It is not an executor:
no cell runs on it.

On a GPU its steps can be captured as CUDA graphs, as a careful user would have it.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.data import Dataset, Indices, Partition
from bench.engine.backends.cuda_graph import cuda_graph
from bench.engine.device_data import Pool
from bench.federation.setup import frozen_tensors
from bench.model_call import keep_still
from bench.models.factory import build, initial_values
from bench.settings import Settings
from bench.tensors import constants, fill, precise


class PlainLoop:
    """One run of FedAvg.

    Args:
        captured: whether steps on whole batches are captured as CUDA graphs.
        bf16: whether products are in bfloat16 (autocast).

    Attributes:
        net: the generic model.
        clients: one client per index list of the partition.
    """

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        partition: Partition,
        device: torch.device,
        *,
        captured: bool = False,
        bf16: bool = False,
    ) -> None:
        dtype = getattr(torch, settings.dtype)
        pool = Pool.of(data, device, dtype)
        model = settings.model, data.shape, data.num_classes, settings.model_options
        self.net = build(*model)
        start = initial_values(self.net, *model, ("initial", settings.seed, settings.model, 0), dtype)
        fixed = {name: constant.to(precise(constant.dtype, dtype)) for name, constant in constants(self.net)}
        fill(self.net, start | fixed, device)
        self._frozen = frozen_tensors(settings, settings.model, self.net)
        for name, weight in self.net.named_parameters():
            weight.requires_grad_(name not in self._frozen)
        self.clients = [
            PlainClient(i, self.net, settings, self._frozen, pool, train, test, captured=captured, bf16=bf16)
            for i, (train, test) in enumerate(zip(partition.train, partition.test, strict=True))
        ]

    def round(self, selected: Iterable[int]) -> int:
        """Train the selected clients and average their models, weighted by samples; returns the number of steps."""
        clients = [self.clients[i] for i in selected if self.clients[i].size]
        steps = sum(client.train(self.net) for client in clients)
        total = sum(client.size for client in clients)
        states = [client.net.state_dict() for client in clients]
        mean = {
            name: torch.stack([state[name] * (c.size / total) for state, c in zip(states, clients, strict=True)]).sum(0)
            for name in states[0]
        }
        _load(self.net, mean)
        return steps

    def evaluate(self, selected: Iterable[int]) -> list[tuple[float, float]]:
        """Accuracy and loss of the generic model: on the selected clients' test samples, on their training samples."""
        sums = torch.zeros(2, 3, dtype=torch.float64)
        for i in selected:
            client = self.clients[i]
            _load(client.net, self.net.state_dict())
            sums += torch.tensor([client.score(client.tests), client.score(client.batches)], dtype=torch.float64)
        return [(float(right / samples), float(loss / samples)) for right, loss, samples in sums]


class PlainClient:
    """A client with its own module, optimizer and DataLoaders.

    Attributes:
        size: number of training samples.
        net: its module.
        batches, tests: DataLoaders of its training and test samples.
    """

    def __init__(
        self,
        i: int,
        net: nn.Module,
        settings: Settings,
        frozen: Collection[str],
        pool: Pool,
        train: Indices,
        test: Indices,
        *,
        captured: bool,
        bf16: bool,
    ) -> None:
        self.size = len(train)
        self.net = copy.deepcopy(net)
        self._frozen = frozen
        self._optimizer = torch.optim.SGD(
            [weight for weight in self.net.parameters() if weight.requires_grad],
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        self._epochs, self._batch_size = settings.epochs, settings.batch_size
        self._captured, self._bf16 = captured, bf16
        self._inputs: tuple[Tensor, Tensor] | None = None
        self._replay: Callable[[], None] | None = None
        self._rng = torch.Generator().manual_seed(i)
        self.batches = self._loader(pool, train, settings.batch_size, shuffle=True)
        self.tests = self._loader(pool, test, settings.batch_size, shuffle=False)

    def _loader(self, pool: Pool, positions: Indices, size: int, *, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
        samples = TensorDataset(*pool.take(torch.from_numpy(positions).to(pool.y.device)))
        shuffle = shuffle and len(samples) > 0  # torch cannot shuffle an empty data set
        return DataLoader(samples, batch_size=size, shuffle=shuffle, generator=self._rng)

    def train(self, start: nn.Module) -> int:
        """Local epochs from another module's weights; returns the number of steps."""
        _load(self.net, start.state_dict())
        self.net.train()
        keep_still(self.net, self._frozen)
        steps = 0
        for _ in range(self._epochs):
            for x, y in self.batches:
                if self._captured and len(x) == self._batch_size:
                    self._step_again(x, y)
                else:
                    self._step(x, y)
                steps += 1
        return steps

    def _step(self, x: Tensor, y: Tensor) -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16):
            loss = nn.functional.cross_entropy(self.net(x), y)
        self._optimizer.zero_grad(set_to_none=not self._captured)  # a graph has the addresses of the gradients
        torch.autograd.backward([loss])
        self._optimizer.step()

    def _step_again(self, x: Tensor, y: Tensor) -> None:
        """Replay the step on the whole batch, which is captured in the first one; to capture it takes some steps."""
        if self._inputs is None or self._replay is None:
            before = copy.deepcopy(self.net.state_dict())
            self._inputs = x.clone(), y.clone()
            self._replay = cuda_graph(partial(self._step, *self._inputs))
            _load(self.net, before)
            for state in self._optimizer.state.values():  # it is the client's first step
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()
        for buffer, new in zip(self._inputs, (x, y), strict=True):
            buffer.copy_(new)
        self._replay()

    def score(self, loader: DataLoader[tuple[Tensor, ...]]) -> tuple[int, float, int]:
        """Number of a loader's samples that its model classifies correctly, sum of losses, and number of samples."""
        self.net.eval()
        right, loss, samples = 0, 0.0, 0
        with torch.no_grad():
            for x, y in loader:
                logits = self.net(x)
                right += int((logits.argmax(1) == y).sum().item())
                loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
                samples += len(y)
        return right, loss, samples


def _load(net: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, tensor in net.state_dict().items():  # `load_state_dict` needs BatchNorm's counter, which our nets lack
        if tensor.is_floating_point():
            tensor.copy_(values[name])
