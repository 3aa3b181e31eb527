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

    Before each step, clients that begin are copied into their lanes; after it, clients that have ended are copied to
    their rows.

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
        load: list[list[tuple[int, int]]],
        store: list[list[tuple[int, int]]],
        values: list[list[Tensor]],
        contexts: list[list[Tensor]],
        rows: list[Tensor],
        lanes: list[Tensor],
        lane_context: list[Tensor],
        inputs: list[Tensor],
        fixed: list[Tensor],
    ) -> list[Tensor]:
        """Run some steps and return the values in the lanes afterwards. All lists of tensors have the same order.

        Args:
            load, store: per step the (lane, row) pairs of clients that begin before it and that have ended after it.
            values, contexts: what each client begins with, by row.
            rows: the clients' values at the end, `[clients, ...]` each.
            lanes: the values in the lanes before the first step, `[lanes, ...]` each.
            lane_context: the contexts in the lanes, `[lanes, ...]` each; changed in place.
            inputs: the inputs of the steps, `[steps, lanes, ...]` each.
            fixed: values that are the same for all lanes and steps.
        """
        owned: list[bool] = []  # of what the caller gives nothing is known
        for t in range(len(load)):
            if len(load[t]) > 0:
                lanes = _writable(lanes, owned)
            for lane, row in load[t]:
                for i in range(len(lanes)):
                    lanes[i][lane].copy_(values[row][i])
                for i in range(len(lane_context)):
                    lane_context[i][lane].copy_(contexts[row][i])
            # An idle lane keeps computing, with a learning rate of 0. Its result is not read, and the next client
            # overwrites it.
            lanes = self.step(lanes + [of_steps[t] for of_steps in inputs] + lane_context + fixed)
            owned = self.owned
            for lane, row in store[t]:
                for i in range(len(lanes)):
                    rows[i][row].copy_(lanes[i][lane])
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


def _writable(lanes: list[Tensor], owned: list[bool]) -> list[Tensor]:
    """The lanes, copied unless they are `owned`: a lane's tensor may also be a context, and must not change then."""
    writable: list[Tensor] = []
    for i in range(len(lanes)):
        if len(owned) > i and owned[i]:
            writable.append(lanes[i])
        else:
            writable.append(lanes[i].clone())
    return writable
