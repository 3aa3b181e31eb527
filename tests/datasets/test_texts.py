"""`texts`: columns of texts as people have them, by a tokenizer file, and encoders that get them with a mask."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor

import bench
from bench.api.data_source import cells_of
from bench.config.identity import cell_id, declared_checksum
from bench.data import Dataset, TokenShape
from bench.errors import UserError
from bench.models.factory import build, initial_values
from bench.models.network import with_head
from bench.results.data_description import describe
from bench.runs.forecast.estimate import estimate
from bench.settings import Settings
from tests.conftest import ROOT
from tests.datasets.helpers import federation, load_from
from tests.datasets.helpers import load as load_any
from tests.engine.problems import assert_same, everything, run
from tests.models.helpers import filled

tokenizers = pytest.importorskip("tokenizers")

EXAMPLE = ROOT / "docs" / "examples" / "texts"
WORDS = ["bad", "food", "good", "very"]
KNOWN = {"<unk>": 0, "<s>": 1, "<p>": 2, **{word: 3 + place for place, word in enumerate(WORDS)}}
ROWS = {
    "text": ["good food", "bad", "very very good food", "very bad food"] * 5,
    "class": ["yes", "no", "yes", "no"] * 5,
    "site": ["A"] * 12 + ["B"] * 8,
}


def save(folder: Path, change: Callable[[dict[str, Any]], object] = lambda known: None) -> str:
    """A tokenizer of words that begins a text with <s>; the file says that it pads with <p>, the token 2."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(KNOWN, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["<unk>", "<s>", "<p>"])
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    words.enable_padding(pad_id=2, pad_token="<p>")
    known = json.loads(words.to_str())
    change(known)
    (folder / "words.json").write_text(json.dumps(known), encoding="utf-8")
    return str(folder / "words.json")


def options(folder: Path, rows: Any = ROWS, **further: Any) -> dict[str, Any]:
    pd.DataFrame(rows).to_csv(folder / "texts.csv", index=False)
    given = {"text_column": "text", "label_column": "class", "site_column": "site", "length": 4}
    return {"path": str(folder / "texts.csv"), "tokenizer": save(folder), **given, **further}


def load(folder: Path, rows: Any = ROWS, **further: Any) -> Dataset:
    return load_any("texts", folder, **options(folder, rows, **further))


def test_texts_are_tokens_and_the_rest_is_as_in_a_table(tmp_path: Path) -> None:
    data = load(tmp_path)
    assert (data.shape, data.x.dtype, data.table) == (TokenShape(4, 7, padding=2), np.int32, None)
    by_text = {"good food": [1, 5, 4, 2], "bad": [1, 3, 2, 2], "very very good food": [1, 6, 6, 5]}
    by_text["very bad food"] = [1, 6, 3, 4]
    assert data.rows is not None
    np.testing.assert_array_equal(data.x, [by_text[ROWS["text"][row]] for row in data.rows])
    table = load_from("csv", tmp_path / "texts.csv", label_column="class", site_column="site")
    for name in ("y", "rows", "groups"):
        np.testing.assert_array_equal(getattr(data, name), getattr(table, name))
    assert (data.classes, data.group_names, data.n_train) == (table.classes, table.group_names, table.n_train)
    assert "5 of 20 texts have more than 4 tokens and are cut; see `length`" in "".join(data.notes)


def test_files_of_sites_and_shards_of_a_download_have_the_same_texts(tmp_path: Path) -> None:
    table, sites, shards = pd.DataFrame(ROWS), tmp_path / "sites", tmp_path / "reviews"
    sites.mkdir()
    shards.mkdir()
    for site, rows in table.groupby("site"):
        rows.drop(columns="site").to_parquet(sites / f"{site}.parquet")
    data, parquet = load(tmp_path), load(tmp_path, path=str(sites), site_column="")
    np.testing.assert_array_equal(parquet.x, data.x)
    assert (parquet.group_names, parquet.checksum) == (data.group_names, data.checksum)
    for name, rows in {"train-0-of-2": table[:6], "train-1-of-2": table[6:15], "test-0-of-1": table[15:]}.items():
        rows.to_parquet(shards / f"{name}.parquet")
    data = load(tmp_path, path=str(shards))
    parts = load(tmp_path, changed(part=["train"] * 15 + ["test"] * 5), part_column="part")
    np.testing.assert_array_equal(data.x, parts.x)
    np.testing.assert_array_equal(data.groups, parts.groups)
    assert (data.name, data.n_train, data.classes) == ("reviews", 15, parts.classes)


@pytest.mark.parametrize("path", ["", "x.jsonl"])
def test_lines_of_json_are_refused_with_the_line_that_converts_them(path: str, tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    pd.DataFrame(ROWS).to_json(tmp_path / "lines" / "x.jsonl", orient="records", lines=True)
    with pytest.raises(UserError, match=r"pandas.read_json\('x.jsonl', lines=True\).to_parquet"):
        load(tmp_path, path=str(tmp_path / "lines" / path))


def changed(**columns: Any) -> dict[str, Any]:
    return {**ROWS, **columns}


def test_a_mark_at_the_beginning_and_decimal_commas_are_no_part_of_texts(tmp_path: Path) -> None:
    given = options(tmp_path)
    save(tmp_path, lambda known: known["model"]["vocab"].update({",": 7}))
    text = pd.DataFrame(changed(text=["3,5", "good"] * 10)).to_csv(index=False, sep=";")
    (tmp_path / "texts.csv").write_text(f"\ufeff{text}", encoding="utf-8")
    data = load_any("texts", tmp_path, **given)
    assert {tuple(row) for row in data.x.tolist()} == {(1, 0, 7, 0), (1, 5, 2, 2)}


@pytest.mark.parametrize("empty", ["", "  ", None])
def test_a_row_without_a_text_is_an_empty_one_and_named(empty: str | None, tmp_path: Path) -> None:
    data = load(tmp_path, changed(text=[empty, "bad", "NA", "null"] * 5))
    assert sorted(map(tuple, data.x.tolist())) == sorted([(1, 2, 2, 2), (1, 3, 2, 2), (1, 0, 2, 2), (1, 0, 2, 2)] * 5)
    assert any("columns that lack values: text (25 %)" in note for note in data.notes)


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a wrong column": ({}, {"text_column": "txt"}, "no column 'txt', which `text_column` names. Did you mean 'text'"),
    "a far column": ({}, {"text_column": "q"}, "names. There are text, class, site."),
    "two roles": ({}, {"text_column": "class"}, "'class' has two uses: it can be the column of labels, of sites, of"),
    "a gap in the labels": ({"class": [None, *ROWS["class"][1:]]}, {}, "is empty in 1 row (the first: row 1, site A)"),
    "no texts": ({"text": [""] * 20}, {}, "the column 'text' has no text in any row"),
    "no tokenizer": ({}, {"tokenizer": "missing.json"}, "there is no tokenizer missing.json; set the option"),
    "another file": ({}, {"tokenizer": str(EXAMPLE / "grid.yaml")}, "grid.yaml cannot be read as a tokenizer ("),
    "a folder": ({}, {"tokenizer": str(EXAMPLE)}, "is a folder, not a tokenizer; set the option `tokenizer` to a file"),
    "a short length": ({}, {"length": 1}, "words.json adds 1 tokens to each text; set a larger `length`"),
    "another padding": ({}, {"padding": "<P>"}, "no token '<P>' (option `padding`). Did you mean '<s>'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_get_one_line(mistake: str, tmp_path: Path) -> None:
    columns, further, words = MISTAKES[mistake]
    with pytest.raises(UserError) as refusal:
        load(tmp_path, changed(**columns), **further)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_that_does_not_say_how_it_pads(tmp_path: Path) -> None:
    given = options(tmp_path)
    save(tmp_path, lambda known: known.update(padding=None))
    with pytest.raises(UserError, match="name one by the option `padding`"):
        load_any("texts", tmp_path, **given)
    assert load_any("texts", tmp_path, **given, padding="<unk>").padding == 0
    file = Path(given["tokenizer"])
    file.write_text(file.read_text(encoding="utf-8").replace('"<p>"', '"<pad>"'), encoding="utf-8")
    assert load_any("texts", tmp_path, **given).padding == 2


def test_numbers_in_a_parquet_column_are_no_texts(tmp_path: Path) -> None:
    pd.DataFrame(changed(text=range(20))).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(UserError, match="'text' holds values of the type int, such as 0; it should hold texts"):
        load(tmp_path, path=str(tmp_path / "t.parquet"))


def test_the_tokenizer_s_content_is_part_of_the_id_and_its_place_is_not(tmp_path: Path) -> None:
    def identity(given: dict[str, Any]) -> tuple[str, str]:
        cell = Settings(method="fedavg", dataset="texts", dataset_options=given)
        return cell_id(cell, declared_checksum(cell)), load_any("texts", tmp_path, **given).checksum

    given = options(tmp_path)
    first = identity(given)
    Path(given["tokenizer"]).rename(tmp_path / "moved.json")
    assert identity({**given, "tokenizer": str(tmp_path / "moved.json")}) == first
    save(tmp_path, lambda known: known["model"]["vocab"].update(more=7))  # the tokens of these texts are the same
    assert not set(identity(given)) & set(first)


def test_a_table_with_free_text_is_told_of_texts(tmp_path: Path) -> None:
    rows = {"class": ["yes", "no"] * 15, "text": [f"text {row} is long" for row in range(30)]}
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match=r"'text' holds 30 different texts in 30 rows.*, or read it by the data set"):
        cells_of(str(tmp_path / "t.csv"), tmp_path, label="class", site="", subject="", part="")


class Watching(torch.nn.Module):
    """Logits of the words' numbers; it keeps the mask that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = torch.nn.Linear(1, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        self.mask = attention_mask
        logits: Tensor = self.classifier((input_ids * attention_mask).sum(1, keepdim=True).float())
        return logits


def test_an_encoder_gets_the_mask_of_its_texts() -> None:
    """As tokenizers make it, but that the first place counts in a text without tokens."""
    net = with_head(Watching(), "classifier", padding=2)
    net(torch.tensor([[1, 5, 4, 2], [2, 2, 2, 2]]))
    assert net.body.mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["fasttext", "pfllib_fasttext", "textcnn", "transformer"])
def test_a_model_knows_its_padding_by_its_number(model: str) -> None:
    """The same logits with the numbers of padding and of another token exchanged, and their embeddings with them."""
    tokens = torch.tensor([[3, 2, 1, 4, 2, 0, 0], [2, 1, 1, 3, 0, 0, 0]])
    swapped = tokens.clone()
    swapped[tokens == 0], swapped[tokens == 2] = 2, 0
    given: tuple[str, TokenShape, int, None] = (model, TokenShape(7, 5), 3, None)
    values = initial_values(build(*given), *given, ("weights",))
    table = next(name for name in values if name.endswith("embedding.weight"))
    theirs = {**values, table: values[table][[2, 1, 0, 3, 4]]}
    expected = filled(build(*given), values)(tokens)
    found = filled(build(model, TokenShape(7, 5, padding=2), 3), theirs)(swapped)
    assert torch.equal(found, expected)


OF_ADAPTERS = ["ffa_lora", "fedsa_lora", "fedex_lora", "feddpa", "flexlora", "flora", "hetlora"]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The grid of the documentation's example, with the files that its script makes."""
    folder = tmp_path_factory.mktemp("texts")
    script: dict[str, Any] = {"__name__": "reviews"}
    exec((EXAMPLE / "reviews.py").read_text(encoding="utf-8"), script)
    reviews = script["table"](rows=80)
    reviews.to_csv(folder / "reviews.csv", index=False)
    script["tokenizer"](reviews["review"]).save(str(folder / "tokenizer.json"))
    bench.load_file(EXAMPLE / "encoders.py")
    grid: dict[str, Any] = yaml.safe_load((EXAMPLE / "grid.yaml").read_text(encoding="utf-8"))
    files = {"path": str(folder / "reviews.csv"), "tokenizer": str(folder / "tokenizer.json")}
    return {**grid, "plugins": [], "datasets": [{**grid["datasets"][0], **files}]}


def cell_of(example: dict[str, Any], method: str, **changes: Any) -> Settings:
    [cell] = bench.load_grid({**example, "methods": [method], **changes}).cells
    return cell


@pytest.mark.parametrize("method", ["fedavg", *(pytest.param(name, marks=pytest.mark.long) for name in OF_ADAPTERS)])
def test_methods_on_adapters_train_an_encoder(method: str, example: dict[str, Any]) -> None:
    """A cohort computes what clients one by one do, with dropout and padding; what travels is LoRA's."""
    cell = cell_of(example, method, dtype="float64")
    cohort, alone = (federation(cell, executor) for executor in ("cohort", "sequential"))
    run(cohort, 2), run(alone, 2)
    assert_same(everything(cohort), everything(alone))
    if method == "fedavg":
        numbers = 2 * 4 * (16 + 16) + 2 * (16 + 1)  # of two layers of 16 x 16 by rank 4, and the head
        assert cohort.ledger[0]["up"] == 5 * 8 * numbers
        single = cell_of(example, method, rounds=1)
        counted = estimate(single, Path("data"), "cpu")
        assert counted is not None
        assert counted.sent == 2 * 5 * 4 * numbers


def test_data_of_texts_are_described(example: dict[str, Any]) -> None:
    described = describe(cell_of(example, "fedavg"), Path("data"))
    assert (described["shape"], described["classes"], len(described["sites"])) == ([16], ["content", "cross"], 5)
