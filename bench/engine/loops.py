"""What calls a function of lanes again and again: training steps of a schedule, and outputs of many models.

The same lines run in Python and, once the function is recorded, as TorchScript, where all its calls are one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class CohortLoop(nn.Module):
    """A schedule played: clients are seated in lanes, take their steps, and their results are taken down.

    Args:
        step: from what lanes hold, what a step is given, the lanes' contexts and fixed values to what lanes hold then.
    """

    def __init__(self, step: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.step = step

    def forward(
        self,
        seated: list[list[tuple[int, int]]],
        load: list[Tensor],
        store: list[Tensor],
        rows: list[Tensor],
        contexts: list[list[Tensor]],
        seats: list[Tensor],
        context: list[Tensor],
        given: list[Tensor],
        fixed: list[Tensor],
    ) -> list[Tensor]:
        """Play some steps; returns what the lanes hold after them. The lists of tensors have one order.

        Args:
            seated, load, store: of `bench.engine.executors.DevicePacking`.
            rows: `[clients, ...]` each, where clients come from and go to.
            contexts: for each client the context of its lane.
            seats: `[lanes, ...]` each, what lanes hold.
            context: `[lanes, ...]` each; changed in place.
            given: `[steps, lanes, ...]` each.
            fixed: the same for all lanes and steps.
        """
        for t in range(len(load)):
            if len(seated[t]) > 0:
                seats = _seat(load[t], rows, seats)
                for lane, row in seated[t]:
                    for i in range(len(context)):
                        context[i][lane].copy_(contexts[row][i])
            # An idle lane goes on with a learning rate of 0; nobody reads it until another client is seated there.
            seats = self.step(seats + [values[t] for values in given] + context + fixed)
            if store[t].numel() > 0:
                _take_down(store[t], rows, seats)
        return seats


class ClientLoop(nn.Module):
    """Steps of one client that is trained by itself.

    Args:
        step: from what trains, what a step is given and fixed values to what trains then.
    """

    def __init__(self, step: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.step = step

    def forward(self, seats: list[Tensor], given: list[Tensor], fixed: list[Tensor]) -> list[Tensor]:
        """What trains, after as many steps as there are in `given`, `[steps, ...]` each."""
        for t in range(given[0].shape[0]):
            seats = self.step(seats + [values[t] for values in given] + fixed)
        return seats


class EvalLoop(nn.Module):
    """Models in groups of as many as there are lanes, each on samples of its own.

    Args:
        outputs: from weights `[lanes, d]`, buffers `[lanes, b]` and inputs `[lanes, samples, ...]` to outputs.
    """

    def __init__(self, outputs: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, weights: list[Tensor], buffers: list[Tensor], x: Tensor) -> list[Tensor]:
        """`[lanes, samples, ...]` for each group; of models the vectors in a list, of inputs `[groups, lanes, ...]`."""
        lanes = x.shape[1]
        found: list[Tensor] = []
        for k in range(x.shape[0]):
            w, b = weights[k * lanes : (k + 1) * lanes], buffers[k * lanes : (k + 1) * lanes]
            found.append(self.outputs([torch.stack(w), torch.stack(b), x[k]])[0])
        return found


def _seat(load: Tensor, rows: list[Tensor], seats: list[Tensor]) -> list[Tensor]:
    """Lanes with other clients in them; a seat may be the same tensor as a context, so none is changed in place."""
    seated: list[Tensor] = []
    for i in range(len(seats)):
        if seats[i].numel() > 0:
            seated.append(seats[i].index_copy(0, load[0], rows[i].index_select(0, load[1])))
        else:
            seated.append(seats[i])
    return seated


def _take_down(store: Tensor, rows: list[Tensor], seats: list[Tensor]) -> None:
    for i in range(len(seats)):
        if seats[i].numel() > 0:
            rows[i].index_copy_(0, store[1], seats[i].index_select(0, store[0]))
