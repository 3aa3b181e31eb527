"""Loops around a step: the steps of a cohort's schedule, of one client, and the evaluation of many models.

They run in Python or, once the step is recorded, as one call of TorchScript.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Function = Callable[[list[Tensor]], list[Tensor]]
"""A step, or another function, on a list of tensors: the form that can be recorded."""


class CohortLoop(nn.Module):
    """Runs the steps of a schedule.

    Before each step, clients that begin are copied into their lanes; after it, clients that have ended are copied back
    to their rows.

    Args:
        step: maps (values in the lanes, inputs of the step, contexts of the lanes, fixed values) to the new values in
            the lanes.

    Attributes:
        owned: for each value in the lanes that a step returns, whether nobody else has its memory, so that clients may
            be copied into it in place. Empty: this is not known, as the step is not recorded.
    """

    owned: list[bool]

    def __init__(self, step: Function) -> None:
        super().__init__()
        self.step = step
        self.owned = getattr(step, "owned", [])

    def forward(
        self,
        starting: list[list[tuple[int, int]]],
        load: list[Tensor],
        store: list[Tensor],
        rows: list[Tensor],
        row_contexts: list[list[Tensor]],
        lanes: list[Tensor],
        lane_context: list[Tensor],
        inputs: list[Tensor],
        fixed: list[Tensor],
    ) -> list[Tensor]:
        """Run some steps and return the values in the lanes afterwards. All lists of tensors have the same order.

        Args:
            starting, load, store: see `bench.engine.step_inputs.DevicePacking`.
            rows: the clients' values, `[clients, ...]` each.
            row_contexts: the context of each client.
            lanes: the values in the lanes before the first step, `[lanes, ...]` each.
            lane_context: the contexts in the lanes, `[lanes, ...]` each; changed in place.
            inputs: the inputs of the steps, `[steps, lanes, ...]` each.
            fixed: values that are the same for all lanes and steps.
        """
        owned: list[bool] = []  # of what the caller gives nothing is known
        for t in range(len(load)):
            if len(starting[t]) > 0:
                lanes = _load_lanes(load[t], rows, lanes, owned)
                for lane, row in starting[t]:
                    for i in range(len(lane_context)):
                        lane_context[i][lane].copy_(row_contexts[row][i])
            # An idle lane keeps computing, with a learning rate of 0. Its result is not read, and the next client
            # overwrites it.
            lanes = self.step(lanes + [values[t] for values in inputs] + lane_context + fixed)
            owned = self.owned
            if store[t].numel() > 0:
                _store_rows(store[t], rows, lanes)
        return lanes


class ClientLoop(nn.Module):
    """Steps of one client that is trained by itself.

    Args:
        step: maps (trained values, inputs of the step, fixed values) to the new trained values.
    """

    def __init__(self, step: Function) -> None:
        super().__init__()
        self.step = step

    def forward(self, state: list[Tensor], inputs: list[Tensor], fixed: list[Tensor]) -> list[Tensor]:
        """The trained values after one step for each entry of `inputs`, `[steps, ...]` each."""
        for t in range(inputs[0].shape[0]):
            state = self.step(state + [values[t] for values in inputs] + fixed)
        return state


class EvalLoop(nn.Module):
    """Evaluates models in groups of one model per lane, each on samples of its own.

    Args:
        outputs: maps weights `[lanes, d]`, buffers `[lanes, b]` and inputs `[lanes, samples, ...]` to outputs.
    """

    def __init__(self, outputs: Function) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, weights: list[Tensor], buffers: list[Tensor], x: Tensor) -> list[Tensor]:
        """Outputs `[lanes, samples, ...]` of each group of models.

        Weights and buffers are lists with one vector per model; inputs are `[groups, lanes, ...]`.
        """
        lanes = x.shape[1]
        results: list[Tensor] = []
        for k in range(x.shape[0]):
            w, b = weights[k * lanes : (k + 1) * lanes], buffers[k * lanes : (k + 1) * lanes]
            results.append(self.outputs([torch.stack(w), torch.stack(b), x[k]])[0])
        return results


def _load_lanes(load: Tensor, rows: list[Tensor], lanes: list[Tensor], owned: list[bool]) -> list[Tensor]:
    """Copy new clients into lanes and return the lanes.

    A lane's tensor may also be a context, so it is changed in place only if it is `owned`.
    """
    loaded: list[Tensor] = []
    for i in range(len(lanes)):
        if lanes[i].numel() == 0:
            loaded.append(lanes[i])
        elif len(owned) > i and owned[i]:
            loaded.append(lanes[i].index_copy_(0, load[0], rows[i].index_select(0, load[1])))
        else:
            loaded.append(lanes[i].index_copy(0, load[0], rows[i].index_select(0, load[1])))
    return loaded


def _store_rows(store: Tensor, rows: list[Tensor], lanes: list[Tensor]) -> None:
    """Copy clients that have ended from their lanes to their rows."""
    for i in range(len(lanes)):
        if lanes[i].numel() > 0:
            all_end = store.shape[1] == lanes[i].shape[0]  # then they are in the order of the lanes
            rows[i].index_copy_(0, store[1], lanes[i] if all_end else lanes[i].index_select(0, store[0]))
