"""Choice of the runner of a session's cells: processes of this machine, or a Ray cluster."""

from bench.runs.cell_runner import CellRunner
from bench.runs.session_options import SessionOptions
from bench.runs.workers import LocalRunner


def choose_runner(options: SessionOptions) -> CellRunner:
    """Choose the runner that the options ask for.

    Raises:
        UserError: there is no such device or cluster, or Ray is not installed.
    """
    cpus, gpus, devices = options.cpus_per_cell, options.gpus_per_cell, options.devices_per_cell
    if options.ray is not None:
        from bench.cluster.connect import connect

        connect(options.ray)  # before the next import, because it reports a missing Ray

        from bench.cluster.ray_runner import RayRunner

        return RayRunner(options.jobs, options.device, cpus, gpus, devices or 1)
    return LocalRunner(options.jobs, options.device)
