"""Every kind of mistake in a grid file and the message it gives, in full."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bench.config.grid import Grid, load_grid
from bench.errors import UserError

Load = Callable[..., Grid]

GOOD = "methods: [toy]\nalpha: 1\n"  # two lines: what is added stands in line 3
NO_ALPHA = "2: the partition 'iid' has no alpha; take it out, or move it to `cases` of other data"

LISTED = "cells:\n- {method: toy, partition: iid}\n"  # two lines, too

TWICE = "is given twice: the cells could not be told apart"
VARIED = "is varied by an axis of this grid; do not set it here too"
DIFFERS = "differs between the cases of this grid; do not set it here too"
NO_NAME = "has a line break, a control character or a path separator"
AS_IN = "should be a name, or a mapping with `name`, as in [fedavg, {name: scd, tau: 0.4}]"

IN_LINE_3 = [  # what is added to it, and the message after its name and line; lists of known names are left out
    ("1: 2", "unknown key '1'. `bench show quickstart` lists all settings."),
    ("[a]: 2", "the key 'a list or mapping' is neither text nor a number of a client"),
    ("stragglers: {3: soon}", 'stragglers.3 = "soon" should be an integer'),
    ("stragglers: {3: [1, -1]}", "stragglers.3[1] = -1 should be greater than or equal to 0"),
    ("client_models: [mlp, cnnn]", "unknown model 'cnnn'. Did you mean 'cnn'?"),
    ("client_models: {by: age, models: [mlp, cnn]}", "client_models.by = \"age\" should be 'size'"),
    ("lr: !!python/name:os.system x", "'x' is no value of the kind 'python/name:os.system' that a grid can hold"),
    ("lr: !!set {a}", "'a list or mapping' is no value of the kind 'set' that a grid can hold"),
    ("lr: 1e999", "'1e999' is no value of the kind 'float' that a grid can hold"),
    ('a: "\\ud800"', "'\\ud800' is no value of the kind 'str' that a grid can hold"),
    ("momentun: 0.5", "unknown key 'momentun'. Did you mean 'momentum'?"),
    ("hp: {tau: 1}", "'hp' cannot stand here: write `scd.tau: 0.2`, or `tau: 0.2` into an entry of `methods`"),
    ("dataset_options: {}", "'dataset_options' cannot stand here: write them into an entry of `datasets`"),
    ("label: x", "'label' cannot stand here: write it into an entry of `methods`"),
    ("toy.tua: 1", "unknown hyperparameter 'tua' of 'toy'. Did you mean 'tau'?"),
    ("tooy.tau: 1", "unknown method 'tooy'. Did you mean 'toy'?"),
    ("rounds: five", 'rounds = "five" should be an integer'),
    ("rounds: 0", "rounds = 0 should be greater than or equal to 1"),
    ("rounds: true", "rounds = true should be an integer"),
    ("rounds:", "rounds = null should be an integer"),
    ("lr: -0.1", "lr = -0.1 should be greater than 0"),
    ("lr: '0.1'", 'lr = "0.1" should be a number'),
    ("momentum: 1", "momentum = 1 should be less than 1"),
    ("participation: 1.5", "participation = 1.5 should be less than or equal to 1"),
    ("protocol: onest", "protocol = \"onest\" should be 'honest', 'paper' or 'tuning'"),
    ("optimizer: adm", "optimizer = \"adm\" has the name 'adm'; there are 'sgd', 'adam', 'adamw'"),
    ("optimizer: {name: adam, betas: [0.9, 1]}", "optimizer.betas[1] = 1 should be less than 1"),
    ("adapters: {name: lora, rank: 0}", "adapters.rank = 0 should be greater than or equal to 1"),
    (
        "adapters: {name: ia3, rank: 4}",
        'adapters = {"name": "ia3", "rank": 4}: unknown key \'rank\'. Did you mean \'train\'?',
    ),
    ("nesterov: yes", 'nesterov = "yes" should be true or false'),
    ("seed: -1", "seed = -1 should be greater than or equal to 0"),
    ("dtype: float16", "dtype = \"float16\" should be 'float32' or 'float64'"),
    ("toy.tau: 2", "tau = 2 should be less than or equal to 1"),
    ("new_client_epochs: [5, 5]", "new_client_epochs = [5, 5]: 5 is listed twice"),
    ("new_clients: 20", "new_clients = 20 leaves none of 20 clients to train"),
    ("clock: moble", "clock = \"moble\": 'moble' is no preset; there are uniform, mobile, datacenter"),
    (
        "clock: {preset: [mobile]}",
        'clock = {"preset": ["mobile"]}: [\'mobile\'] is no preset; there are uniform, mobile, datacenter',
    ),
    ("clock: {presett: mobile}", "clock = {\"presett\": \"mobile\"}: unknown key 'presett'. Did you mean 'preset'?"),
    ("clock: {slow_clients: {share: 0.5}}", "clock.slow_clients = {\"share\": 0.5} needs 'factor'"),
    ("clock: {uplink: [5, 0]}", "clock.uplink[1] = 0 should be greater than 0"),
    ("partition_options: {shares: [0.75]}", "shares = [0.75] is too short: value 2 is missing"),
    ("partition_options: {shares: [0.7, 0, 0.1, 0.1]}", "shares = [0.7, 0, 0.1, 0.1] should have 3 values at most"),
    ("model: mlpp", "unknown model 'mlpp'. Did you mean 'mlp'?"),
    ("model_options: {hiden: 3}", "unknown option 'hiden' of model 'mlp'. Did you mean 'hidden'?"),
    ("model_options: 3", "model_options = 3 should be a mapping"),
    ("partition: dirichle", "unknown partition 'dirichle'. Did you mean 'dirichlet'?"),
    ("server: bufered", "unknown server rule 'bufered'. Did you mean 'buffered'?"),
    ("server: 3", "server = 3: should be the name of a server rule or a mapping with `name`"),
    ("datasets: [digit]", "unknown data set 'digit'. Did you mean 'digits'?"),
    ("datasets: [npz]", "data set 'npz' needs the option 'path'"),
    ("datasets: [digits, digits]", f'the data set "digits" {TWICE}'),
    ("datasets: [{name: digits, set: {rounds: 0}}]", "rounds = 0 should be greater than or equal to 1"),
    (
        "datasets: [digits, {name: npz, path: a, label: digits}]",
        'this npz and digits have one name in tables, "digits"; give another `label`',
    ),
    ("seeds: [0, 1, 0]", f"the value 0 {TWICE}"),
    ("seeds: [0.5]", "seed = 0.5 should be an integer"),
    ("seeds: []", "seeds = [] is empty; write for instance [0, 1, 2]"),
    ("vary: [lr]", 'vary = ["lr"] should be a mapping, for instance {scd.tau: [0.1, 0.2]}'),
    ("vary: {lr: 0.1}", "lr = 0.1 should be a list, for instance [0.1, 0.2]"),
    ("vary: {lr: []}", "lr = [] is empty; write for instance [0.1, 0.2]"),
    ("vary: {lr: [0.1, 0, -1]}", "lr = 0 should be greater than 0"),
    ("vary: {lr: [0.1, 0.10]}", f"the value 0.1 {TWICE}"),
    ("vary: {dataset: [digits]}", "'dataset' cannot stand here: use the axis `datasets`"),
    ("cases: [3]", "3 should be a mapping of settings"),
    ("cases: [{name: a, clients: 2}, {name: a, clients: 3}]", f'the case "a" {TWICE}'),
    ("cases: [{set: {clients: 2}}]", "'set' cannot stand here: write the settings themselves, without `set`"),
    ("cases: [{name: a, method: toy}]", "'method' cannot stand here: use the axis `methods`"),
    ("cases: [{}]", 'the name "" of a case has 0 characters; it should have 1 to 80'),
    ("name: .hidden", 'the name ".hidden" of the grid should not start with a dot, nor start or end with a space'),
    ("description: [a]", 'description = ["a"] should be text'),
    ("published: scd_t55", "unknown published table 'scd_t55'. Did you mean 'scd_t5'?"),
]
BAD = [  # the whole file, and the message after its name
    ("", "1: the grid is empty; write for instance `methods: [fedavg, local]`"),
    ("- a\n- b", '1: the grid holds ["a", "b"], not keys with values; write for instance `methods: [fedavg, local]`'),
    ("a: [1", "1: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'"),
    ("a: 1\n  b: 2", "2: not valid YAML: mapping values are not allowed here"),
    ("a: \x07", "1: not valid YAML: a control character"),
    (GOOD + "---\nb: 1", "3: not valid YAML: expected a single document in the stream, but found another document"),
    (GOOD + "lr: 0.1\nlr: 0.2", "4: the key 'lr' is given twice"),
    (GOOD + 'a: "\\UFFFFFFFF"', " not valid YAML: an escape beyond Unicode"),
    ("method: [toy]\nalpha: 1\n", f'1: ["toy"] {AS_IN}'),
    ("method: toy\nmethods: [toy]\nalpha: 1\n", "1: 'method' and 'methods' are both given; keep one of them"),
    (
        GOOD + "precision: bf16\ndtype: float64",
        "3: precision bf16 is for float32; take out `dtype` or `precision`",
    ),
    (
        GOOD + "optimizer: adam\nmomentum: 0.5",
        "3: optimizer adam: `momentum` and `nesterov` are of sgd; take them out",
    ),
    (GOOD + "model: logistic\nmodel_options: {hidden: 3}", "4: unknown option 'hidden' of model 'logistic'."),
    ("methods: [toy]", "1: the partition 'dirichlet' needs alpha; add for instance `alphas: [1, 0.1]`"),
    ("methods: [toy]\nalphas: [0]", "2: alpha = 0 should be greater than 0"),
    (GOOD + "partition: iid", NO_ALPHA),
    (GOOD + "alphas: [1]", "2: 'alpha' and 'alphas' are both given; keep one of them"),
    ("methods: [toy]\nalphas: [1, 1.0]", f"2: the value 1.0 {TWICE}"),
    ("methods: [toy]\npartition: file", "2: partition 'file' needs the option 'path'"),
    ("alpha: 1", "1: the grid has no methods; add for instance `methods: [fedavg, local]`"),
    ("methods: []", "1: methods = [] is empty; write for instance [fedavg, {name: scd, tau: 0.4}]"),
    ("methods: toy", '1: methods = "toy" should be a list, for instance [fedavg, {name: scd, tau: 0.4}]'),
    ("methods: [3]", f"1: 3 {AS_IN}"),
    ("methods: [{name: tooy}]\nalpha: 1", "1: unknown method 'tooy'. Did you mean 'toy'?"),
    ("methods: [{name: toy, tua: 1}]\nalpha: 1", "1: unknown hyperparameter 'tua' of 'toy'. Did you mean 'tau'?"),
    ("methods: [{name: toy, label: a/b}]\nalpha: 1", f'1: the label "a/b" {NO_NAME}'),
    ("methods: [{name: toy, label: 3}]\nalpha: 1", "1: the label 3 should be text"),
    ("methods: [toy, {name: plain, label: toy}]\nalpha: 1", f'1: the label "toy" {TWICE}'),
    (
        "methods: [{name: toy, set: {toy.tau: 0.1}}]\nalpha: 1",
        "1: 'toy.tau' cannot stand here: write hyperparameters beside `name`",
    ),
    ("methods: [{name: toy, set: {lrr: 0.1}}]\nalpha: 1", "1: unknown key 'lrr'. Did you mean 'lr'?"),
    (
        f"methods: [{{name: toy, label: {'x' * 81}}}]\nalpha: 1",
        f'1: the label "{"x" * 56}... has 81 characters; it should have 1 to 80',
    ),
    (GOOD + "seeds: [0]\nseed: 1", "4: 'seed' and 'seeds' are both given; keep one of them"),
    (GOOD + "lr: 0.1\nvary: {lr: [0.2]}", f"3: 'lr' {VARIED}"),
    (GOOD + "vary: {alpha: [2]}", f"2: 'alpha' {VARIED}"),
    ("methods: [toy]\nalphas: [1]\nvary: {alpha: [2]}", "3: 'alpha' is varied by `alphas` already"),
    ("methods: [toy]\nalphas: [1]\nvary: {alphas: [2]}", "3: unknown key 'alphas'. Did you mean 'alpha'?"),
    (
        "methods: [plain]\nalpha: 1\nvary: {toy.tau: [0.1, 0.2]}",
        "3: 'toy.tau' does nothing: no entry of 'toy' in this grid",
    ),
    (
        "methods: [plain, {name: plain, label: b, set: {lr: 0.5}}]\nalpha: 1\ncases: [{lr: 0.1}, {lr: 0.2}]",
        f"1: 'lr' {DIFFERS}",
    ),
    (
        "methods: [{name: toy, tau: 0.5}]\ndatasets: [{name: digits, cases: [{alpha: 1}, {alpha: 2, toy.tau: 0.1}]}]",
        f"1: 'toy.tau' {DIFFERS}",
    ),
    ("cells: []", "1: cells should be a list of mappings, for instance [{method: fedavg, lr: 0.1}]"),
    (LISTED + "seeds: [0, 1, 0]", f"3: the value 0 {TWICE}"),
    (LISTED + "seeds: [0, '1']", '3: seed = "1" should be an integer'),
    (LISTED + "seeds: [1]\nseed: 2", "4: 'seed' and 'seeds' are both given; keep one of them"),
    (LISTED + "- {method: toy, rounds: '5'}", '3: rounds = "5" should be an integer'),
    (LISTED + "- {method: toy, partition: iid}\nalpha: '1'", '4: alpha = "1" should be a number'),
    (LISTED + "- {method: toy, rouds: 5}", "3: unknown setting 'rouds'. Did you mean 'rounds'?"),
    (
        LISTED + "- {method: toy, partition: iid, lr: 0.01}",
        "3: the same cell stands above: the two could not be told apart",
    ),
    (
        LISTED + "- {method: toy, partition: iid, seed: 5}\nseeds: [0, 1]",
        "3: 'seed' is varied by `seeds` of this grid; do not set it here too",
    ),
    ("methods: [{name: [toy]}]\nalpha: 1", f'1: {{"name": ["toy"]}} {AS_IN}'),
    ("methods: [toy]\nalphas: [1]\ncases: [{name: a, alpha: 2}]", f"3: 'alpha' {VARIED}"),
]

BAD_OVERRIDES = [
    ("rounds", "--set rounds: write key=value, for instance --set rounds=5"),
    ("=3", "--set =3: write key=value, for instance --set rounds=5"),
    ("rounds=x", '--set rounds: rounds = "x" should be an integer'),
    (
        "rounds=[1",
        "--set rounds:1: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
    ),
    ("roundss=3", "--set roundss: unknown key 'roundss'. Did you mean 'rounds'?"),
    ("alphas=[0]", "--set alphas: alpha = 0 should be greater than 0"),
    ("a b=3", "--set a b=3: write key=value, for instance --set rounds=5"),
    ("toy.tua=3", "--set toy.tua: unknown hyperparameter 'tua' of 'toy'. Did you mean 'tau'?"),
    ("fedavg.x=3", "--set fedavg.x: unknown hyperparameter 'x' of 'fedavg'."),
    ("ditto.lam=3", "--set ditto.lam: 'ditto.lam' does nothing: no entry of 'ditto' in this grid"),
    ("lr=", "--set lr: lr = null should be a number"),
]


def problem(text: str, folder: Path) -> str:
    return re.sub(r" (Known:|`bench (methods|datasets|models)` lists) .*", "", text).replace(f"{folder}/", "")


@pytest.mark.parametrize(("text", "expected"), [*BAD, *((GOOD + line, f"3: {said}") for line, said in IN_LINE_3)])
def test_message_for_a_file(load: Load, tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(text)
    assert problem(str(caught.value), tmp_path) == f"grid.yaml:{expected}"


@pytest.mark.parametrize(("override", "expected"), BAD_OVERRIDES)
def test_message_for_an_override(load: Load, tmp_path: Path, override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(GOOD, override)
    assert problem(str(caught.value), tmp_path) == expected


def test_all_problems_are_listed_in_the_order_of_lines(load: Load, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(
            "momentun: 1\nrounds: 0\nrounds: 1\nmethods: [toy, {name: toy, tau: 7}]\nlr: x\nseeds: [a, 1, b]",
            "clients=0",
        )
    assert problem(str(caught.value), tmp_path).splitlines() == [
        "--set clients: clients = 0 should be greater than or equal to 1",
        "grid.yaml:1: unknown key 'momentun'. Did you mean 'momentum'?",
        "grid.yaml:2: rounds = 0 should be greater than or equal to 1",
        "grid.yaml:3: the key 'rounds' is given twice",
        "grid.yaml:4: tau = 7 should be less than or equal to 1",
        'grid.yaml:5: lr = "x" should be a number',
        'grid.yaml:6: seed = "a" should be an integer',
        'grid.yaml:6: seed = "b" should be an integer',
    ]


def test_ten_problems_are_enough(load: Load) -> None:
    with pytest.raises(UserError) as caught:
        load(GOOD + "".join(f"key{i}: 1\n" for i in range(15)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 5 more"


MANY = f"{GOOD}seeds: {list(range(1000))}\nvary: {{rounds: {list(range(1, 102))}}}"
ALIASES = (f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 9))
TOO_LARGE = {
    "aliases": (
        "a0: &a0 [1, 1]\n" + "".join(ALIASES),
        ":1: more values than a grid may have, or nested deeper than 16 levels",
    ),
    "long": ("#" * 200_001, ": 200001 characters are too many for a grid; the limit is 200000"),
    "deep": ("[" * 100_000, ": nested deeper than 16 levels"),
    "cells": (MANY, ": the grid has 101000 cells; the limit is 100000"),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_what_would_take_all_memory_is_refused_at_once(load: Load, tmp_path: Path, what: str) -> None:
    text, expected = TOO_LARGE[what]
    with pytest.raises(UserError) as caught:
        load(text)
    assert problem(str(caught.value), tmp_path) == f"grid.yaml{expected}"


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UserError, match=r"grid\.yaml: not text in UTF-8 \(byte 6\)"):
        load_grid(str(tmp_path / "grid.yaml"), [])


WORDS = [
    "methods", "datasets", "alphas", "seeds", "vary", "cases", "set", "name", "label", "server", "toy", "plain",
    "toy.tau", "lr", "alpha", "digits", "npz", "path", "partition", "model_options", "hidden", "description", "iid",
]  # fmt: skip
SCALARS = st.one_of(
    st.sampled_from(WORDS), st.integers(-2, 10**40), st.floats(), st.booleans(), st.none(), st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(WORDS), SCALARS), inner, max_size=4)
    ),
    max_leaves=12,
)
TOKENS = st.sampled_from(
    [*WORDS, ": ", "- ", "\n", "\n  ", "[", "]", "{", "}", ", ", "&a ", "*a", "!!int ", "'", '"', "|", "1"]
)


def loads_or_explains(load: Load, text: str) -> None:
    with contextlib.suppress(UserError):
        assert load(text).cells


NO_TIME = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.long
@NO_TIME
@given(st.one_of(st.text(max_size=40), st.lists(TOKENS, max_size=25).map("".join)))
@example('"\\uD800')
@example("%YAML 1.1.1\n---")
@example("? [a\n: ")
def test_any_text_loads_or_is_explained(load: Load, text: str) -> None:
    loads_or_explains(load, text.encode("utf-8", "replace").decode())


@NO_TIME
@given(st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=6), st.booleans())
def test_any_values_load_or_are_explained(load: Load, data: dict[str, object], complete: bool) -> None:
    import yaml

    try:
        text = yaml.safe_dump({"methods": ["toy"], "alpha": 1, **data} if complete else data, allow_unicode=True)
    except yaml.YAMLError:
        return  # a value that PyYAML cannot write
    loads_or_explains(load, text.encode("utf-8", "replace").decode())


@settings(NO_TIME, max_examples=25)
@given(st.text(max_size=30))
def test_any_override_is_taken_or_explained(text: str) -> None:
    for override in (text, f"methods={text}", f"lr={text}", f"vary={text}"):
        with contextlib.suppress(UserError):
            assert load_grid("quickstart", [override]).cells
