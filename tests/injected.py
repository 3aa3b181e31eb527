"""Faults that somebody might make, two in each room, which the quick tests of that room must notice.

`python -m tests.injected [ROOM...]` injects them one by one into a copy of the checkout and prints which test is the
first to fail. The exit status is 1 if a fault is not noticed. That the tests pass without a fault is for `make test`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.test_rooms import room as room_of

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", ".hypothesis", "runs", "data", "site")
"""What lies beside the code and a copy does not need."""


@dataclass(frozen=True)
class Fault:
    """A change of one file that gives wrong results and no error.

    Attributes:
        what: what the program then does.
        file: the file, from the root of the checkout.
        old, new: a text that stands once in the file, and the text in its place.
        tests: which quick tests are to notice it: a file below `tests/`, or a test of a file.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def room(self) -> str:
        """The room of the file."""
        return room_of(self.file.removesuffix(".py").replace("/", "."))


FAULTS = [
    Fault(
        "Adam corrects its bias in every step as in the first",
        "bench/optim.py",
        "scale = lr / (1 - first**step)",
        "scale = lr / (1 - first)",
        "base/test_cell_optimizer.py",
    ),
    Fault(
        "the prefix `head` covers `heads`, too",
        "bench/params.py",
        'self.name.startswith(p + ".")',
        "self.name.startswith(p)",
        "base/test_params.py",
    ),
    Fault(
        "the file of an exported model may ask for operations that open files",
        "bench/operations.py",
        '_FILES = {"from_file"}',
        '_FILES = {"to_file"}',
        "base/test_exported.py",
    ),
    Fault(
        "a text in place of a list is read letter by letter",
        "bench/api/arguments.py",
        "        if isinstance(value, str):\n            raise",
        "        if isinstance(value, bytes):\n            raise",
        "api/test_python.py::test_a_text_in_place_of_a_list_is_refused",
    ),
    Fault(
        "a grid without a name and without a folder goes somewhere",
        "bench/api/arguments.py",
        "    if out is None:\n        raise",
        "    if out is None:\n        return what\n        raise",
        "api/test_python.py::test_a_grid_without_a_name_needs_a_folder",
    ),
    Fault(
        "`bench clean` removes cells without being asked to",
        "bench/cli/results.py",
        "        if yes:\n            try",
        "        if True:\n            try",
        "cli/test_cli.py::test_finished_cells_of_other_settings_are_named_and_can_be_removed",
    ),
    Fault(
        "Ctrl-C is not heard while torch is imported",
        "bench/cli/starting.py",
        "signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "cli/test_starting.py",
    ),
    Fault(
        "a tensor changed in place is not sent again",
        "bench/cluster/wire.py",
        " and entry.version == _version(tensor)",
        "",
        "cluster/test_team.py",
    ),
    Fault(
        "both ends of a wire number their tensors alike",
        "bench/cluster/wire.py",
        "self._next = 0 if near else 1",
        "self._next = 0",
        "cluster/test_team.py",
    ),
    Fault(
        "a site that is left out of a round keeps what it has learned in it",
        "bench/sites/server.py",
        "        self.after |= dict.fromkeys(ids, version)",
        "        self.after |= dict.fromkeys(self.after, version)",
        "sites/test_faults.py::test_a_message_that_cannot_be_taken_is_a_dropout",
    ),
    Fault(
        "messages may hold tensors that no one has asked for",
        "bench/sites/messages.py",
        "        if self._left:",
        "        if not self._left:",
        "sites/test_bytes.py::test_a_tensor_beside_the_values_is_refused",
    ),
    Fault(
        "files may move between folders of the data",
        "bench/config/file_digests.py",
        "[file.relative_to(path).as_posix() for file in files]",
        '[file.name if path.is_dir() else "." for file in files]',
        "config/test_identity.py",
    ),
    Fault(
        "a file with an old time is taken for the one before it",
        "bench/config/file_digests.py",
        "max(stat.st_mtime_ns, stat.st_ctime_ns)",
        "stat.st_mtime_ns",
        "config/test_identity.py",
    ),
    Fault(
        "state that a method keeps in the process is not noticed",
        "bench/conformance/checks.py",
        "        advance(stranger, 1)\n",
        "",
        "conformance/test_conformance.py::test_broken_ones_fail_by_the_check_meant_for_it",
    ),
    Fault(
        "a default above its search range is not noticed",
        "bench/conformance/checks.py",
        "default is None or ends[0] <= default <= ends[1]",
        "default is None or ends[0] <= default",
        "conformance/test_conformance.py::test_broken_ones_fail_by_the_check_meant_for_it",
    ),
    Fault(
        "a short batch counts its first padded sample",
        "bench/engine/batches.py",
        "(place < n).sum(axis=1)",
        "(place <= n).sum(axis=1)",
        "engine/test_batches.py",
    ),
    Fault(
        "the third trained slice is taken from the wrong place",
        "bench/engine/step.py",
        "at, used = b, used + b - a",
        "at, used = b, b - a",
        "engine/test_step.py",
    ),
    Fault(
        "a tensor that two clients receive counts twice as distinct",
        "bench/federation/traffic.py",
        "if tensor.numel() and at not in self._seen:",
        "if tensor.numel():",
        "federation/test_traffic.py",
    ),
    Fault(
        "clients' running statistics are averaged without weights",
        "bench/federation/participants.py",
        "(self._server.sizes[i], b)",
        "(1, b)",
        "federation/test_participation.py",
    ),
    Fault(
        "running variances of padded batches are biased",
        "bench/engine/lanes/norm.py",
        "unbiased = var * count / (count - 1)",
        "unbiased = var",
        "engine/lanes/test_layers.py",
    ),
    Fault(
        "Nesterov's step looks ahead by the old velocity",
        "bench/engine/lanes/sgd.py",
        "g + momentum * moved if nesterov",
        "g + momentum * velocity[0] if nesterov",
        "engine/lanes/test_sgd.py",
    ),
    Fault(
        "the mean of a text's words counts its padding",
        "bench/models/sequences.py",
        "words.sum(1).clamp(min=1)",
        "words.shape[1]",
        "models/test_sequences.py",
    ),
    Fault(
        "an odd scale of attention: by all heads' width",
        "bench/models/transformers.py",
        "scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)",
        "scores = q @ k.transpose(2, 3) / math.sqrt(width)",
        "models/test_transformers.py",
    ),
    Fault(
        "a damaged checkpoint is taken",
        "bench/store/checkpoint.py",
        "if checksum(path / name) != digest]",
        "if not (path / name).exists()]",
        "store/test_checkpoint.py",
    ),
    Fault(
        "a table that was changed is continued",
        "bench/store/growing_tables.py",
        "if any(checksum(self._path(name), size) != known for",
        "if any(self._path(name).stat().st_size < size for",
        "runs/test_cell.py::test_damage_costs_time_and_no_bytes",
    ),
    Fault(
        "bins of the calibration error cancel each other",
        "bench/metrics/classification.py",
        "np.abs(surplus).sum()",
        "np.abs(surplus.sum())",
        "metrics/test_classification.py",
    ),
    Fault(
        "a score of samples of one class is made up",
        "bench/metrics/classification.py",
        "if len(present) < 2:",
        "if len(present) < 1:",
        "metrics/test_classification.py",
    ),
    Fault(
        "of equal rounds the first is reported",
        "bench/results/reported_round.py",
        "max(reversed(means), key=means.__getitem__)",
        "max(means, key=means.__getitem__)",
        "results/test_results.py::test_the_latest_of_the_best_means_of_five",
    ),
    Fault(
        "a round is chosen by one value more than it should",
        "bench/results/reported_round.py",
        "values[max(0, end - WINDOW) : end]",
        "values[max(0, end - WINDOW - 1) : end]",
        "results/test_results.py::test_the_latest_of_the_best_means_of_five",
    ),
    Fault(
        "a grid takes the folder of another one without being asked to",
        "bench/runs/run_folder.py",
        "if info is None or take_over:",
        'if info is None or kind == "grid":',
        "cli/test_doors.py",
    ),
    Fault(
        "options of Ray are ignored where there is no Ray",
        "bench/runs/options.py",
        "if options.ray is None and {",
        "if options.ray and {",
        "api/test_alike.py",
    ),
    Fault(
        "evaluation counts in full where one round in ten is evaluated",
        "bench/speed/measure.py",
        "r.evaluation / every",
        "r.evaluation",
        "speed/test_measure.py",
    ),
    Fault(
        "the plain loop averages clients without weights",
        "bench/speed/plain.py",
        "state[name] * (c.size / total)",
        "state[name] / len(clients)",
        "speed/test_plain.py",
    ),
    Fault(
        "SCAFFOLD corrects in the wrong direction",
        "methods/scaffold.py",
        '"correction": c - c_i',
        '"correction": c_i - c',
        "methods/test_scaffold.py",
    ),
    Fault(
        "Yogi's second moment moves the wrong way",
        "methods/fedopt.py",
        "torch.sign(v - square)",
        "torch.sign(square - v)",
        "methods/test_fedopt.py",
    ),
    Fault(
        "a constant channel is divided by a deviation of zero",
        "bench/samples/normalising.py",
        "np.where(constant, np.inf, std * unit)",
        "std * unit",
        "samples/test_normalising.py",
    ),
    Fault(
        "a share of all classes goes to validation whatever the labels",
        "bench/samples/local_parts.py",
        "shuffled[y[indices[shuffled]] == label][:count]",
        "shuffled[:count]",
        "samples/test_parts.py",
    ),
    Fault(
        "validation is smaller where tests are fixed",
        "datasets/partitions.py",
        "of_rest = chosen[:2] / max(1 - chosen[2], np.finfo(float).tiny)",
        "of_rest = chosen[:2]",
        "datasets/test_partitions.py",
    ),
    Fault(
        "a donor is left with too few samples",
        "datasets/partitions.py",
        "min(missing, len(lists[donor]) - least)",
        "missing",
        "datasets/test_partitions.py",
    ),
    Fault(
        "the edge of a logarithmic range is that of a linear one",
        "sweeps/space.py",
        "math.log(x) if self.log else x for x",
        "x for x",
        "sweeps/test_study.py",
    ),
    Fault(
        "chosen settings are reported on the seeds of tuning",
        "sweeps/fair.py",
        "choice.arm.reported(choice.best.params, choice.arm.report_seeds)",
        "choice.arm.reported(choice.best.params, study.file.seeds)",
        "sweeps/test_report.py",
    ),
    Fault(
        "comparisons that could not be made count in Holm's correction",
        "reports/statistics/inference.py",
        "(len(order) - position) * p_values[k]",
        "(len(p_values) - position) * p_values[k]",
        "reports/test_statistics.py",
    ),
    Fault(
        "a family of many tasks outweighs one of few",
        "reports/statistics/ranking.py",
        "1 / (len(sizes) * sizes[family])",
        "1 / len(families)",
        "reports/test_ranking.py",
    ),
    Fault(
        "a gain within the margin is called one",
        "reports/decision/verdict.py",
        "if gain.high <= margin:",
        "if gain.high <= 0:",
        "reports/test_decision.py",
    ),
    Fault(
        "the method of a decision is chosen by the rows that judge it",
        "reports/decision/verdict.py",
        "key=lambda candidate: candidate.validation",
        "key=lambda candidate: candidate.correct.mean()",
        "reports/test_decision.py",
    ),
    Fault(
        "top_k sends the smallest numbers of an update",
        "bench/channel/compression.py",
        "largest(wanted.abs(), k, unit",
        "largest(-wanted.abs(), k, unit",
        "channel/test_compression.py",
    ),
    Fault(
        "clipping divides by the norm and forgets its bound",
        "bench/channel/clipping.py",
        "update.values * (norm / length)",
        "update.values / length",
        "channel/test_clipping.py",
    ),
    Fault(
        "alie lies on the other side of the mean",
        "bench/attacks/colluding.py",
        "malicious.mean(0) + malicious.std(0, correction=0)",
        "malicious.mean(0) - malicious.std(0, correction=0)",
        "attacks/test_attacks.py",
    ),
    Fault(
        "a flipped update keeps its sign",
        "bench/attacks/on_messages.py",
        "malicious.mul(-self.hp.factor)",
        "malicious.mul(+self.hp.factor)",
        "attacks/test_attacks.py",
    ),
]
"""In the order of the rooms."""


@dataclass(frozen=True)
class Outcome:
    """What the quick tests of a room say of a fault.

    Attributes:
        noticed_by: the first test that fails; empty if all pass.
        seconds: wall time of the command.
    """

    noticed_by: str
    seconds: float


def copy_checkout(folder: Path) -> None:
    """Copy the checkout to a folder that does not exist, without its environment, caches and results."""
    shutil.copytree(ROOT, folder, ignore=lambda at, names: set() if Path(at) != ROOT else LEFT_OUT(at, names))


def inject(fault: Fault, folder: Path) -> Outcome:
    """Run the quick tests of a fault's room in a copy of the checkout with the fault, which is then removed.

    Raises:
        RuntimeError: pytest did not come to its end, for instance because a file could not be imported.
    """
    file = folder / fault.file
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace(fault.old, fault.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider"]
    command.append(f"tests/{fault.tests}")
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}  # saves seconds
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=folder, env={**kept, "PYTHONPATH": str(folder)}, capture_output=True, text=True
        )
    finally:
        file.write_text(before, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{fault.file}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    assert bool(failed) == bool(done.returncode), done.stdout
    return Outcome(failed[1] if failed else "", time.monotonic() - begin)


def main() -> None:
    """Inject the faults of the rooms that are asked for, or of all, and print a table."""
    rooms = list(dict.fromkeys(fault.room for fault in FAULTS))
    parser = argparse.ArgumentParser(prog="python -m tests.injected", description=main.__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"one of {', '.join(rooms)}")
    asked = parser.parse_args().rooms or rooms
    if unknown := set(asked) - set(rooms):
        parser.error(f"no faults are known for {', '.join(sorted(unknown))}; choose from {', '.join(rooms)}")
    print("room | fault | noticed by | seconds\n--- | --- | --- | ---", flush=True)
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "checkout")
        copy_checkout(folder)
        for fault in FAULTS:
            if fault.room in asked:
                outcome = inject(fault, folder)
                missed += not outcome.noticed_by
                noticed = outcome.noticed_by or "NO TEST"
                print(f"{fault.room} | {fault.what} | {noticed} | {outcome.seconds:.0f}", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
