"""`bench.decide`: from the data of several sites to a decision whether and how they should train together."""

import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.api import refuse_text, run_name
from bench.api.data_source import cells_of
from bench.errors import UserError, refusing_exits
from bench.federation.cell_data import apply_shifts, load_dataset, load_partition
from bench.results.cell_names import dataset_name
from bench.results.data_description import describe
from bench.runs.options import SessionOptions
from bench.runs.run_folder import choose_folder
from bench.runs.workers import start_server, worker_count
from bench.settings import RECORDED, Settings
from bench.store import inside, store
from reports.decision.scores import RARE, RECORDED_AS, SCORES, held_out
from sweeps.budget import FEW_SEEDS, TUNING_SEEDS

if TYPE_CHECKING:
    import pandas as pd

    from reports.decision.evidence import Evidence
    from reports.decision.verdict import ConsortiumVerdict
    from sweeps.budget import DecisionPlan

TABLE, MODELS = "data.csv", "models"
"""In the run folder: a table that came from memory, and models, of the recommended method or else of the best by
validation of those that train together."""
_END = 12.0  # seconds that are kept for models from outside and the page
_OF_TABLES: dict[str, Any] = {
    "model": "mlp",
    "model_options": {"hidden": 32},
    "batch_size": 20,
    "lr": 0.1,
    "rounds": 60,
}
"""Settings of the cells of a table, which says none itself."""


@dataclass(frozen=True)
class Decision:
    """Result of `bench.decide`.

    Attributes:
        headline: in a few words.
        sentences: in plain sentences with intervals, the most important first.
        verdict, evidence: the same as numbers.
        folder: the run, which is a study's; `decision.json` is in it.
        page: for a person; None where the minutes are too few, and the sentence says how many would do.
    """

    headline: str
    sentences: list[str]
    verdict: "ConsortiumVerdict"
    evidence: "Evidence"
    folder: Path
    page: Path | None

    def __repr__(self) -> str:
        return "\n".join([self.headline, *(f"- {text}" for text in self.sentences), f"page: {self.page}"])


@refusing_exits()
def decide(
    data: "pd.DataFrame | Path | str",
    out: Path | str | None = None,
    *,
    label: str = "",
    site: str = "",
    subject: str = "",
    part: str = "",
    leave_out: Sequence[str] = (),
    categories: Sequence[str] = (),
    accept: Sequence[str] = (),
    normalise: str = "per_client",
    score: str = "",
    minutes: float = 30.0,
    seeds: int | None = None,
    margin: float = 1.0,
    confidence: float = 0.95,
    jobs: int | None = None,
    device: str = "auto",
    data_root: Path | str = "data",
    quiet: bool = False,
) -> Decision:
    """Decide whether sites should train together, whether one model is enough, and by which method (docs/decide.md).

    Eight methods are tuned on the same budget, run on several seeds, and compared on held-out rows of every site. The
    same call goes on where one was stopped; with more minutes, a finished one adds seeds.

    Args:
        data: a table in memory, a table's file (.csv, .parquet), a folder of them, a grid file, or a built-in grid's
            name; of a grid its data, model and training count, not its methods and seeds.
        out: the run folder; default: `runs/decide_<data>`.
        label: of a table: the column of labels.
        site: of a table: the column of sites; of a folder without it each file is a site.
        subject: of a table: the column that says of whom a row is; rows of one subject are kept together, and intervals
            are of subjects.
        part: of a table: the column that says of each row whether it is for `train` or `test`, such as by its year.
        leave_out: of a table: columns that are no features.
        categories: of a table: columns whose numbers are names.
        accept: of a table: columns that may tell the label alone, and `repeats` if rows may be nearly equal.
        normalise: of a table: whose means and deviations its numbers are measured by, `per_client` or `pooled`.
        score: that decides, by which rounds, settings and methods are chosen, too: `accuracy`, `balanced_accuracy`,
            `auroc` or `log_loss`; default: accuracy, or `auroc` if one class has more than four fifths of the rows.
        minutes: that it may take.
        seeds: that are run of each method, however long it takes: the answer then depends on no machine's speed. None:
            as many as there is time for.
        margin: of equivalence, in points: hundredths of the score.
        confidence: of the intervals.
        jobs: cells side by side; default: one per core.
        device: `auto`, `cpu` or `cuda`.
        data_root: where data files lie.
        quiet: print nothing.

    Raises:
        UserError: something is wrong with the data or an argument; nothing has been trained then.
        KeyboardInterrupt: the user stopped it.
    """
    begin = time.monotonic()
    refuse_text(leave_out=leave_out, categories=categories, accept=accept)
    _check(minutes, seeds, margin, confidence, normalise, score)
    options = SessionOptions.of({**locals(), "tracking": False, "keep": "best"})
    if not isinstance(data, Path | str):
        out = Path(out or Path("runs") / "decide_table")
    if out:
        choose_folder(out, "study", run_name("decision", out))  # before the data are read
    with _as_file(data, out) as source:
        cells = cells_of(
            source, options.data_root, label=label, site=site, subject=subject, part=part, leave_out=leave_out,
            categories=categories,
        )  # fmt: skip
        if len(cells) > 1:
            raise UserError(f"{source}: the grid divides data in {len(cells)} ways; a decision is about a single one")
        cell = cells[0].model_copy(update={**_OF_TABLES, "normalise": normalise}) if label else cells[0]
        _check_sites(cell, source)
        _check_doubts(load_dataset(cell, options.data_root).doubts, accept, source)
    out = Path(out) if out else Path("runs") / f"decide_{dataset_name(cell)}"
    name = run_name("decision", out)
    folder = choose_folder(out, "study", name)
    cell = _with_same_tests(cell, options.data_root)
    about = describe(cell, options.data_root)
    score, why = (score, "as asked for") if score else _default_score(about)
    cell = _chosen_by(cell, score, options.data_root)
    start_server()
    # What is wrong with the arguments or the data has been said by now: these take torch, and seconds.
    from bench.api.run import choose_runner
    from bench.runs.progress import printer
    from bench.runs.session import print_notes
    from reports.decision.evidence import Evidence, read_evidence
    from reports.decision.page import Course, write_decision
    from reports.decision.sentences import headline, sentences
    from reports.decision.verdict import ConsortiumVerdict
    from reports.decision.verdict import decide as verdict_of
    from sweeps.decision import DecisionRun, TooLittleTimeError
    from sweeps.portfolio import portfolio

    say = printer(quiet=quiet)
    if not quiet:
        print_notes(about["remarks"])
    say(f"decided by {score}: {why}")
    kinds = portfolio(about["sites"])
    run = DecisionRun(
        folder, name, cell, score, list(kinds), options, choose_runner, worker_count(options.jobs, options.device),
        begin, begin + 60 * minutes - _END, minutes, say, seeds,
    )  # fmt: skip
    level = round(1 - confidence, 12)
    try:
        plan = run.run()
    except TooLittleTimeError as error:
        wanted = math.ceil((error.seconds + _END) / 6) / 10  # minutes, rounded up
        verdict = ConsortiumVerdict(
            margin, level, reason=f"{minutes:g} minutes are too few; about {wanted:.1f} would do"
        )
        nothing = held_out(score, np.empty(0, np.int64), np.empty(0, np.int64))
        evidence = Evidence((), (), nothing, score, (), (), {}, {}, np.empty((0, 1)))
        return Decision(headline(verdict), sentences(verdict, evidence), verdict, evidence, folder, None)
    evidence = read_evidence(folder, score, about, run.chosen(plan), plan.seeds, options.data_root)
    verdict = verdict_of(evidence, margin, level)
    models = _export(folder, verdict.method or verdict.judged, options.data_root)
    steps = [f"Score: {score}, {why}.", *_steps(cell, plan, folder), models]
    page = write_decision(folder, verdict, evidence, Course(about, kinds, steps))
    return Decision(headline(verdict), sentences(verdict, evidence), verdict, evidence, folder, page)


def _check(minutes: float, seeds: int | None, margin: float, confidence: float, normalise: str, score: str) -> None:
    if not minutes > 0:
        raise UserError(f"--minutes {minutes:g}: should be above 0")
    if seeds is not None and not 2 <= seeds <= TUNING_SEEDS[0]:
        raise UserError(f"--seeds {seeds}: should be from 2 to {TUNING_SEEDS[0]}")
    if not 0 < margin < 100:
        raise UserError(f"--margin {margin:g}: should be above 0, in points, which are hundredths of the score")
    if score and score not in SCORES:
        raise UserError(f"--score {score}: should be one of {', '.join(SCORES)}")
    if not 0.5 <= confidence < 1:
        raise UserError(f"--confidence {confidence:g}: should be from 0.5 to below 1, such as 0.95")
    if normalise not in ("per_client", "pooled"):
        raise UserError(f"--normalise {normalise}: should be per_client or pooled")


def _default_score(about: dict[str, Any]) -> tuple[str, str]:
    """The score that the shares of the classes ask for, and why."""
    counts = [sum(of_class) for of_class in zip(*(site["classes"] for site in about["sites"]), strict=True)]
    share, name = max(counts) / max(1, sum(counts)), about["classes"][counts.index(max(counts))]
    if share > RARE:
        return "auroc", f"{100 * share:.1f} % of the training rows are {name}: accuracy is high without learning"
    return "accuracy", f"the most frequent class, {name}, has {100 * share:.1f} % of the training rows"


def _chosen_by(cell: Settings, score: str, data_root: Path) -> Settings:
    """The cell, whose rounds and settings are chosen by a score, or by the loss where too few validation rows are of a
    second class: an area under a curve is then defined nowhere."""
    dataset, quantity = load_dataset(cell, data_root), RECORDED_AS.get(score, score)
    for seed in (*TUNING_SEEDS, *range(FEW_SEEDS)) if score == "auroc" else ():
        partition = load_partition(cell.model_copy(update={"seed": seed}), dataset)
        if all(len(np.unique(dataset.y[at])) < 2 for at in partition.validation):
            quantity = "loss"
    metrics = cell.metrics if quantity in (*RECORDED, *cell.metrics) else (*cell.metrics, quantity)
    return cell.model_copy(update={"metrics": metrics, "select_by": quantity})


def _check_sites(cell: Settings, data: str) -> None:
    if cell.partition == "iid" and cell.clients == 1:
        raise UserError(f"{data}: --site should name the column of sites, as sites are what a decision is about")
    if cell.protocol != "honest" or cell.timeline or cell.attack or cell.new_clients:
        raise UserError(
            f"{data}: a decision is about honest sites whose data stay: take out `protocol`, `timeline`, `attack` and "
            "`new_clients`"
        )


def _check_doubts(doubts: Mapping[str, str], accept: Sequence[str], data: str) -> None:
    """Refuse to decide over what makes a decision mean little, unless the user accepts it."""
    if strange := [name for name in accept if name not in doubts]:
        raise UserError(f"--accept {strange[0]}: {data} needs {' and '.join(doubts) or 'nothing'} to be accepted")
    for name in [name for name in doubts if name not in accept]:
        raise UserError(f"{data}: {doubts[name]}. If it is as it should be, say --accept {name}")


def _with_same_tests(cell: Settings, data_root: Path) -> Settings:
    """The cell, if need be with one partition for all seeds: every seed's models are judged on the same samples.

    Raises:
        UserError: sites share samples for tests, or have none.
    """
    dataset = load_dataset(cell, data_root)

    def tests(seed: int) -> list[list[int]]:
        settings = cell.model_copy(update={"seed": seed})
        _, partition = apply_shifts(settings, dataset, load_partition(settings, dataset))
        return [at.tolist() for at in partition.test]

    first = tests(0)
    samples = [sample for site in first for sample in site]
    if len(first) < 2:
        raise UserError(f"{dataset_name(cell)}: there is a single site, with nobody to train together with")
    if not samples:
        raise UserError(f"{dataset_name(cell)}: no site has samples for tests; cut some with `shares: [0.75, 0, 0.25]`")
    if len(set(samples)) < len(samples):
        raise UserError(
            f"{dataset_name(cell)}: sites share samples for tests under the partition {cell.partition!r}; give each "
            "its own, in `partition_options` by `shares: [0.6, 0.15, 0.25]`"
        )
    alike = all(tests(seed) == first for seed in (*TUNING_SEEDS[:1], 1))
    return cell if alike else cell.model_copy(update={"partition_seed": 0})


@contextmanager
def _as_file(data: "pd.DataFrame | Path | str", out: Path | str | None) -> Iterator[str]:
    """The data as a file, where the processes that train find it: a table from memory is written into the run folder,
    and removed if it is refused inside the block.

    Raises:
        UserError: the folder has another table.
    """
    if isinstance(data, Path | str):
        yield str(data)
        return
    folder = Path(str(out))
    file, text = folder / TABLE, data.to_csv(index=False)
    here = [place.exists() for place in (folder, file)]
    if here[1] and file.read_text(encoding="utf-8") != text:
        raise UserError(f"{file} is another table; give another `out`")
    folder.mkdir(parents=True, exist_ok=True)
    store.write_text(file, text)
    try:
        yield str(file)
    except Exception:
        if not here[1]:
            file.unlink()
        if not here[0]:
            folder.rmdir()
        raise


def _steps(cell: Settings, plan: "DecisionPlan", folder: Path) -> list[str]:
    """Sentences on what was run."""
    model = " ".join([cell.model, *(f"{key}={value}" for key, value in cell.model_options.items())])
    same = cell.partition_seed is not None
    division = "the division of the rows is the same" if same else "and other validation rows"
    by = {None: "as the data set is", "per_client": "by each site's training rows", "pooled": "by all training rows"}
    return [
        f"Model: {model}; {plan.rounds} rounds, batches of {cell.batch_size}; inputs normalised {by[cell.normalise]}.",
        f"Tuning: {', '.join(plan.methods)}; trials of each, as far as there was time: {plan.trials}, on "
        f"{len(TUNING_SEEDS)} seeds, by {cell.select_by} on validation rows; the same budget for all, no held-out row.",
        f"Report: the chosen settings on {plan.seeds} further seeds, with other initial weights and batches, "
        f"{division}. Held-out rows are the same for all.",
        f"It is an ordinary run: `bench verify {folder}` computes cells again, `bench report {folder}` shows all, "
        f"`bench sweep --study {folder}/study.yaml` runs it elsewhere, and `bench run --grid {folder}/best.yaml` the "
        "chosen settings.",
    ]


def _export(folder: Path, method: str, data_root: Path) -> str:
    """Write the models of a method's first seed into the run folder, and say so in a sentence."""
    if not method:
        return "Models: none, as nothing can be said of any method."
    from bench.results.results import load_run

    cells = [cell for cell in load_run(folder).cells if cell.label == method and cell.settings.protocol == "honest"]
    cell, out = min(cells, key=lambda cell: cell.settings.seed), folder / MODELS
    if out.is_dir():  # of an earlier command, with fewer seeds or minutes
        shutil.rmtree(inside.make_folder(folder, out))
    try:
        notes = cell.export(out, data_root).notes
    except UserError as error:
        return f"Models: none ({error})."
    return " ".join([f"Models: {out}, of `{method}` with seed {cell.settings.seed}.", *(f"{note}." for note in notes)])
