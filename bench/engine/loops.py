"""Loops around a step: the steps of a cohort's schedule, of one client, and the evaluation of many models.

They run in Python or, once the step is recorded, as one call of TorchScript.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class CohortLoop(nn.Module):
    """Runs the steps of a schedule.

    Before each step, clients that begin are copied into their lanes; after it, clients that have ended are copied back
    to their rows.

    Args:
        step: maps (values in the lanes, inputs of the step, contexts of the lanes, fixed values) to the new values in
            the lanes.
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
        """Run some steps and return the values in the lanes afterwards. All lists of tensors have the same order.

        Args:
            seated, load, store: see `bench.engine.device_plan.DevicePacking`.
            rows: the clients' values, `[clients, ...]` each.
            contexts: the context of each client.
            seats: the values in the lanes, `[lanes, ...]` each.
            context: the contexts in the lanes, `[lanes, ...]` each; changed in place.
            given: the inputs of the steps, `[steps, lanes, ...]` each.
            fixed: values that are the same for all lanes and steps.
        """
        for t in range(len(load)):
            if len(seated[t]) > 0:
                seats = _seat(load[t], rows, seats)
                for lane, row in seated[t]:
                    for i in range(len(context)):
                        context[i][lane].copy_(contexts[row][i])
            # An idle lane keeps computing, with a learning rate of 0. Its result is not read, and the next client
            # overwrites it.
            seats = self.step(seats + [values[t] for values in given] + context + fixed)
            if store[t].numel() > 0:
                _take_down(store[t], rows, seats)
        return seats


class ClientLoop(nn.Module):
    """Steps of one client that is trained by itself.

    Args:
        step: maps (trained values, inputs of the step, fixed values) to the new trained values.
    """

    def __init__(self, step: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.step = step

    def forward(self, seats: list[Tensor], given: list[Tensor], fixed: list[Tensor]) -> list[Tensor]:
        """The trained values after one step for each entry of `given`, `[steps, ...]` each."""
        for t in range(given[0].shape[0]):
            seats = self.step(seats + [values[t] for values in given] + fixed)
        return seats


class EvalLoop(nn.Module):
    """Evaluates models in groups of one model per lane, each on samples of its own.

    Args:
        outputs: maps weights `[lanes, d]`, buffers `[lanes, b]` and inputs `[lanes, samples, ...]` to outputs.
    """

    def __init__(self, outputs: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, weights: list[Tensor], buffers: list[Tensor], x: Tensor) -> list[Tensor]:
        """Outputs `[lanes, samples, ...]` of each group of models.

        Weights and buffers are lists with one vector per model; inputs are `[groups, lanes, ...]`.
        """
        lanes = x.shape[1]
        found: list[Tensor] = []
        for k in range(x.shape[0]):
            w, b = weights[k * lanes : (k + 1) * lanes], buffers[k * lanes : (k + 1) * lanes]
            found.append(self.outputs([torch.stack(w), torch.stack(b), x[k]])[0])
        return found


def _seat(load: Tensor, rows: list[Tensor], seats: list[Tensor]) -> list[Tensor]:
    """The lanes after new clients were copied in. A lane's tensor may also be a context, so the copy is never made in
    place."""
    seated: list[Tensor] = []
    for i in range(len(seats)):
        if seats[i].numel() > 0:
            seated.append(seats[i].index_copy(0, load[0], rows[i].index_select(0, load[1])))
        else:
            seated.append(seats[i])
    return seated


def _take_down(store: Tensor, rows: list[Tensor], seats: list[Tensor]) -> None:
    """Copy clients that have ended from their lanes to their rows."""
    for i in range(len(seats)):
        if seats[i].numel() > 0:
            rows[i].index_copy_(0, store[1], seats[i].index_select(0, store[0]))
