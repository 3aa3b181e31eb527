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
NO_ALPHA = (
    "2: the partition 'iid' has no alpha; take `alpha` or `alphas` out, or, where other data sets need them, "
    "move them there: `cases: [{name: uneven, partition: dirichlet, alpha: 0.1}]`"
)

LISTED = "cells:\n- {method: toy, partition: iid}\n"  # two lines, too

BAD = [  # the file, and the message after its name; lists of known names are left out, for they grow
    ("", "1: the grid is empty; write for instance `methods: [fedavg, local]`"),
    ("# only a comment", "1: the grid is empty; write for instance `methods: [fedavg, local]`"),
    ("- a\n- b", '1: the grid holds ["a", "b"], not keys with values; write for instance `methods: [fedavg, local]`'),
    ("just text", '1: the grid holds "just text", not keys with values; write for instance `methods: [fedavg, local]`'),
    ("a: [1", "1: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'"),
    ("a: 1\n  b: 2", "2: not valid YAML: mapping values are not allowed here"),
    (
        "a: \tb: @",
        "1: not valid YAML: while scanning for the next token, found character '\\t' that cannot start any token",
    ),
    ("a: \x07", "1: not valid YAML: a control character"),
    (GOOD + "x: *nowhere", "3: not valid YAML: found undefined alias 'nowhere'"),
    (GOOD + "---\nb: 1", "3: not valid YAML: expected a single document in the stream, but found another document"),
    (GOOD + "lr: 0.1\nlr: 0.2", "4: the key 'lr' is given twice"),
    (GOOD + "1: 2", "3: unknown key '1'. `bench show quickstart` lists all settings."),
    (GOOD + "1.5: 2", "3: the key '1.5' is neither text nor a number of a client"),
    (GOOD + "[a]: 2", "3: the key (a list or mapping) is neither text nor a number of a client"),
    (GOOD + "stragglers: {3: soon}", '3: stragglers.3 = "soon" should be an integer'),
    (GOOD + "stragglers: {3: [1, -1]}", "3: stragglers.3[1] = -1 should be greater than or equal to 0"),
    (GOOD + "stragglers: {3: []}", "3: stragglers.3 = [] should have 1 or more values"),
    (GOOD + "stragglers: {a: 1}", "3: stragglers = {\"a\": 1}: the key 'a' should be an integer"),
    (GOOD + "client_models: [mlp, cnnn]", "3: unknown model 'cnnn'. Did you mean 'cnn'?"),
    (GOOD + "client_models: {by: size, models: [mlp, cnnn]}", "3: unknown model 'cnnn'. Did you mean 'cnn'?"),
    (
        GOOD + "client_models: {by: age, models: [mlp, cnn]}",
        "3: client_models.by = \"age\" should be 'size'",
    ),
    (
        "methods: [toy, fedavg]\nalpha: 1\nclient_models: [mlp, cnn]",
        "3: the clients of method 'fedavg' must have one architecture; take out `client_models`",
    ),
    (GOOD + "client_models: mlp", '3: client_models = "mlp" should be a list'),
    (
        GOOD + "lr: !!python/name:os.system x",
        "3: 'x' is no value of the kind 'python/name:os.system' that a grid can hold",
    ),
    (GOOD + "lr: !!set {a}", "3: values of the kind 'set' are not understood"),
    (GOOD + "lr: 1e999", "3: '1e999' is no value of the kind 'float' that a grid can hold"),
    (GOOD + "x: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "3: not valid YAML: nested deeper than 16 levels"),
    (GOOD + "a: &a [*a]", "3: more values than a grid may have, its aliases expanded"),
    (GOOD + 'a: "\\UFFFFFFFF"', " not valid YAML: an escape beyond Unicode"),
    (GOOD + 'a: "\\ud800"', "3: '\\ud800' is not valid Unicode"),
    (GOOD + "momentun: 0.5", "3: unknown key 'momentun'. Did you mean 'momentum'?"),
    (GOOD + "zzz: 1", "3: unknown key 'zzz'. `bench show quickstart` lists all settings."),
    (
        GOOD + "hp: {tau: 1}",
        "3: 'hp' cannot stand here: write `scd.tau: 0.2`, or `tau: 0.2` into an entry of `methods`",
    ),
    (GOOD + "dataset_options: {}", "3: 'dataset_options' cannot stand here: write them into an entry of `datasets`"),
    (GOOD + "label: x", "3: 'label' cannot stand here: write it into an entry of `methods`"),
    (GOOD + "toy.tua: 1", "3: unknown hyperparameter 'tua' of 'toy'. Did you mean 'tau'?"),
    (GOOD + "tooy.tau: 1", "3: unknown method 'tooy'. Did you mean 'toy'?"),
    (GOOD + "plain.tau: 1", "3: unknown hyperparameter 'tau' of 'plain'."),
    (GOOD + "toy.: 1", "3: unknown hyperparameter '' of 'toy'."),
    ("method: [toy]\nalpha: 1\n", '1: `method` names one; several are `methods: ["toy"]`'),
    ("method: toy\nmethods: [toy]\nalpha: 1\n", "1: 'method' and 'methods' are both given; keep one of them"),
    (GOOD + "rounds: five", '3: rounds = "five" should be an integer'),
    (GOOD + "rounds: 0", "3: rounds = 0 should be greater than or equal to 1"),
    (GOOD + "rounds: 0o18", '3: rounds = "0o18" should be an integer'),
    (GOOD + "rounds: !!int 0xg", "3: '0xg' is no value of the kind 'int' that a grid can hold"),
    (GOOD + "rounds: 2.5", "3: rounds = 2.5 should be an integer"),
    (GOOD + "rounds: true", "3: rounds = true should be an integer"),
    (GOOD + "rounds:", "3: rounds = null should be an integer"),
    (GOOD + "lr: -0.1", "3: lr = -0.1 should be greater than 0"),
    (GOOD + "lr: '0.1'", '3: lr = "0.1" should be a number'),
    (GOOD + "lr: [0.1]", "3: lr = [0.1] should be a number"),
    (GOOD + "momentum: 1", "3: momentum = 1 should be less than 1"),
    (GOOD + "participation: 0", "3: participation = 0 should be greater than 0"),
    (GOOD + "participation: 1.5", "3: participation = 1.5 should be less than or equal to 1"),
    (GOOD + "protocol: onest", "3: protocol = \"onest\" should be 'honest', 'paper' or 'tuning'"),
    (GOOD + "precision: fp16", "3: precision = \"fp16\" should be 'fp32', 'tf32' or 'bf16'"),
    (
        GOOD + "precision: bf16\ndtype: float64",
        "3: precision bf16 is for float32; take out `dtype: float64` or `precision`",
    ),
    (GOOD + "optimizer: adm", "3: optimizer = \"adm\" has the name 'adm'; there are 'sgd', 'adam', 'adamw'"),
    (GOOD + "optimizer: {name: adam, betas: [0.9, 1]}", "3: optimizer.betas[1] = 1 should be less than 1"),
    (
        GOOD + "optimizer: adam\nmomentum: 0.5",
        "3: optimizer adam has no momentum of sgd; take out `momentum` and `nesterov`",
    ),
    (GOOD + "nesterov: yes", '3: nesterov = "yes" should be true or false'),
    (GOOD + "clients: 0", "3: clients = 0 should be greater than or equal to 1"),
    (GOOD + "seed: -1", "3: seed = -1 should be greater than or equal to 0"),
    (GOOD + "dtype: float16", "3: dtype = \"float16\" should be 'float32' or 'float64'"),
    (GOOD + "toy.tau: 2", "3: tau = 2 should be less than or equal to 1"),
    (GOOD + "toy.mode: medium", "3: mode = \"medium\" should be 'fast' or 'slow'"),
    (GOOD + "toy.personal: head", '3: personal = "head" should be a list'),
    (
        GOOD + "cases: []",
        "3: cases = [] is empty; write for instance [{clients: 10, alpha: 1}, {clients: 100, alpha: 0.1}]",
    ),
    (GOOD + "new_client_epochs: []", "3: new_client_epochs = [] should have 1 or more values"),
    (GOOD + "new_client_epochs: [0, -1]", "3: new_client_epochs[1] = -1 should be greater than or equal to 0"),
    (GOOD + "new_client_epochs: [5, 5]", "3: new_client_epochs = [5, 5]: every value should be listed once"),
    (GOOD + "new_clients: 20", "3: new_clients = 20 leaves none of 20 clients to train"),
    (
        GOOD + "new_clients: 1\ncases: [{clients: 2}, {clients: 1}]",
        "3: new_clients = 1 leaves none of 1 clients to train",
    ),
    (GOOD + "clock: moble", "3: clock = \"moble\": 'moble' is no preset; there are uniform, mobile, datacenter"),
    (
        GOOD + "clock: {preset: [mobile]}",
        '3: clock = {"preset": ["mobile"]}: [\'mobile\'] is no preset; there are uniform, mobile, datacenter',
    ),
    (GOOD + "clock: 3", "3: clock = 3 should be a mapping"),
    (
        GOOD + "clock: {presett: mobile}",
        "3: clock = {\"presett\": \"mobile\"}: unknown key 'presett'. Did you mean 'preset'?",
    ),
    (
        GOOD + "clock: {slow_clients: {client: [0], factor: 5}}",
        "3: clock.slow_clients = {\"client\": [0], \"factor\": 5}: unknown key 'client'. Did you mean 'clients'?",
    ),
    (GOOD + "clock: {slow_clients: {share: 0.5}}", "3: clock.slow_clients = {\"share\": 0.5} needs 'factor'"),
    (
        GOOD + "clock: {samples_per_second: {median: 0}}",
        "3: clock.samples_per_second.median = 0 should be greater than 0",
    ),
    (GOOD + "clock: {uplink: [5, 0]}", "3: clock.uplink[1] = 0 should be greater than 0"),
    (GOOD + "clock: {uplink: fast}", '3: clock.uplink = "fast" should be a number'),
    (GOOD + "partition_options: {shares: [0.75]}", "3: shares = [0.75] is too short: value 2 is missing"),
    (
        GOOD + "partition_options: {shares: [0.7, 0, 0.1, 0.1]}",
        "3: shares = [0.7, 0, 0.1, 0.1] should have 3 values at most",
    ),
    (GOOD + "model: mlpp", "3: unknown model 'mlpp'. Did you mean 'mlp'?"),
    (GOOD + "model_options: {hiden: 3}", "3: unknown option 'hiden' of model 'mlp'. Did you mean 'hidden'?"),
    (GOOD + "model_options: {hidden: -3}", "3: hidden = -3 should be greater than 0"),
    (GOOD + "model_options: 3", "3: model_options = 3 should be a mapping"),
    (GOOD + "model: logistic\nmodel_options: {hidden: 3}", "4: unknown option 'hidden' of model 'logistic'."),
    (GOOD + "partition: dirichle", "3: unknown partition 'dirichle'. Did you mean 'dirichlet'?"),
    (GOOD + "server: bufered", "3: unknown server rule 'bufered'. Did you mean 'buffered'?"),
    (
        GOOD + "server: {buffer: 3}",
        '3: server = {"buffer": 3}: should be the name of a server rule or a mapping with `name`',
    ),
    (
        GOOD + "server: {name: buffered, bufer: 3}",
        "3: unknown hyperparameter 'bufer' of 'buffered'. Did you mean 'buffer'?",
    ),
    (GOOD + "server: {name: buffered, buffer: 0}", "3: buffer = 0 should be greater than or equal to 1"),
    (GOOD + "server: 3", "3: server = 3: should be the name of a server rule or a mapping with `name`"),
    ("methods: [toy]", "1: the partition 'dirichlet' needs alpha; add for instance `alphas: [1, 0.1]`"),
    ("methods: [toy]\nalphas: [0]", "2: alpha = 0 should be greater than 0"),
    (GOOD + "partition: iid", NO_ALPHA),
    ("methods: [toy]\nalphas: [1]\npartition: iid", NO_ALPHA),
    (GOOD + "alphas: [1]", "2: 'alpha' and 'alphas' are both given; keep one of them"),
    ("methods: [toy]\nalphas: [1, 1.0]", "2: the value 1.0 is given twice: the cells could not be told apart"),
    ("methods: [toy]\npartition: file", "2: partition 'file' needs the option 'path'"),
    ("alpha: 1", "1: the grid has no methods; add for instance `methods: [fedavg, local]`"),
    ("methods: []", "1: methods = [] is empty; write for instance [fedavg, {name: scd, tau: 0.4}]"),
    ("methods: toy", '1: methods = "toy" should be a list, for instance [fedavg, {name: scd, tau: 0.4}]'),
    ("methods: [3]", "1: 3 should be a name, or a mapping with `name`, as in [fedavg, {name: scd, tau: 0.4}]"),
    (
        "methods: [{tau: 1}]",
        '1: {"tau": 1} should be a name, or a mapping with `name`, as in [fedavg, {name: scd, tau: 0.4}]',
    ),
    ("methods: [{name: tooy}]\nalpha: 1", "1: unknown method 'tooy'. Did you mean 'toy'?"),
    ("methods: [{name: toy, tua: 1}]\nalpha: 1", "1: unknown hyperparameter 'tua' of 'toy'. Did you mean 'tau'?"),
    ("methods: [{name: toy, tau: 3}]\nalpha: 1", "1: tau = 3 should be less than or equal to 1"),
    (
        "methods: [{name: toy, label: a/b}]\nalpha: 1",
        '1: the label "a/b" has a line break, a control character or a path separator',
    ),
    ("methods: [{name: toy, label: 3}]\nalpha: 1", "1: label = 3 should be text"),
    (
        'methods: [{name: toy, label: "a\\nb"}]\nalpha: 1',
        '1: the label "a\\nb" has a line break, a control character or a path separator',
    ),
    ("methods: [toy, toy]\nalpha: 1", '1: the label "toy" is given twice: the cells could not be told apart'),
    (
        "methods: [toy, {name: plain, label: toy}]\nalpha: 1",
        '1: the label "toy" is given twice: the cells could not be told apart',
    ),
    (
        "methods: [{name: toy, set: {toy.tau: 0.1}}]\nalpha: 1",
        "1: 'toy.tau' cannot stand here: write hyperparameters beside `name`",
    ),
    ("methods: [{name: toy, set: {lrr: 0.1}}]\nalpha: 1", "1: unknown key 'lrr'. Did you mean 'lr'?"),
    ("methods: [{name: toy, set: 3}]\nalpha: 1", "1: 3 should be a mapping of settings"),
    ("methods: [{name: toy, server: nope}]\nalpha: 1", "1: unknown server rule 'nope'."),
    (
        f"methods: [{{name: toy, label: {'x' * 81}}}]\nalpha: 1",
        f'1: the label "{"x" * 56}... has 81 characters; it should have 1 to 80',
    ),
    (GOOD + "datasets: [digit]", "3: unknown data set 'digit'. Did you mean 'digits'?"),
    (GOOD + "datasets: [npz]", "3: data set 'npz' needs the option 'path'"),
    (GOOD + "datasets: [{name: npz, pth: a}]", "3: unknown option 'pth' of data set 'npz'. Did you mean 'path'?"),
    (GOOD + "datasets: [{name: npz, path: 3}]", "3: path = 3 should be text"),
    (GOOD + "datasets: [digits, digits]", '3: the data set "digits" is given twice: the cells could not be told apart'),
    (GOOD + "datasets: [{name: digits, set: {rounds: 0}}]", "3: rounds = 0 should be greater than or equal to 1"),
    (GOOD + "datasets: digits", '3: datasets = "digits" should be a list, for instance [digits]'),
    (GOOD + "seeds: 3", "3: seeds = 3 should be a list, for instance [0, 1, 2]"),
    (GOOD + "seeds: [0, 1, 0]", "3: the value 0 is given twice: the cells could not be told apart"),
    (GOOD + "seeds: [0.5]", "3: seed = 0.5 should be an integer"),
    (GOOD + "seeds: []", "3: seeds = [] is empty; write for instance [0, 1, 2]"),
    (GOOD + "seeds: [0]\nseed: 1", "4: 'seed' and 'seeds' are both given; keep one of them"),
    (GOOD + "vary: [lr]", '3: vary = ["lr"] should be a mapping, for instance {scd.tau: [0.1, 0.2]}'),
    (GOOD + "vary: {lr: 0.1}", "3: lr = 0.1 should be a list of values"),
    (GOOD + "vary: {lr: []}", "3: lr = [] is empty; give it a list of values"),
    (GOOD + "vary: {lrr: [1]}", "3: unknown key 'lrr'. Did you mean 'lr'?"),
    (GOOD + "vary: {lr: [0.1, 0, -1]}", "3: lr = 0 should be greater than 0"),
    (GOOD + "vary: {lr: [0.1, 0.10]}", "3: the value 0.1 is given twice: the cells could not be told apart"),
    (GOOD + "lr: 0.1\nvary: {lr: [0.2]}", "3: 'lr' is varied by an axis of this grid; do not set it here too"),
    (GOOD + "vary: {dataset: [digits]}", "3: 'dataset' cannot stand here: use the axis `datasets`"),
    (GOOD + "vary: {methods: [toy]}", "3: 'methods' cannot stand here: it is an axis, at the top of the grid"),
    (GOOD + "vary: {alpha: [2]}", "2: 'alpha' is varied by an axis of this grid; do not set it here too"),
    (
        "methods: [{name: toy, tau: 0.1}]\nalpha: 1\nvary: {toy.tau: [0.2]}",
        "1: 'toy.tau' is varied by an axis of this grid; do not set it here too",
    ),
    ("methods: [toy]\nalphas: [1]\nvary: {alpha: [2]}", "3: 'alpha' is varied by `alphas` already"),
    ("methods: [toy]\nalphas: [1]\nvary: {alphas: [2]}", "3: unknown key 'alphas'. Did you mean 'alpha'?"),
    (GOOD + "vary: {plain.tau: [1]}", "3: unknown hyperparameter 'tau' of 'plain'."),
    (
        "methods: [plain]\nalpha: 1\nvary: {toy.tau: [0.1, 0.2]}",
        "3: 'toy.tau' does nothing: no entry of 'toy' in this grid",
    ),
    ("methods: [plain]\nalpha: 1\ntoy.tau: 0.1", "3: 'toy.tau' does nothing: no entry of 'toy' in this grid"),
    (
        "methods: [plain]\nalpha: 1\ncases: [{name: a, toy.tau: 0.1}]",
        "3: 'toy.tau' does nothing: no entry of 'toy' in this grid",
    ),
    (
        "methods: [plain, {name: plain, label: b, set: {lr: 0.5}}]\nalpha: 1\ncases: [{lr: 0.1}, {lr: 0.2}]",
        "1: 'lr' differs between the cases of this grid; do not set it here too",
    ),
    (
        "methods: [{name: toy, tau: 0.5}]\ndatasets: [{name: digits, cases: [{alpha: 1}, {alpha: 2, toy.tau: 0.1}]}]",
        "1: 'toy.tau' differs between the cases of this grid; do not set it here too",
    ),
    (
        "methods: [{name: plain, set: {lr: 0.5}}]\nalpha: 1\ndatasets: [digits, {name: digits, set: {lr: 0.1}}]",
        "1: 'lr' differs between the cases of this grid; do not set it here too",
    ),
    ("cells: []", "1: cells should be a list of mappings, for instance [{method: fedavg, lr: 0.1}]"),
    (LISTED + "seeds: []", "3: seeds = [] is empty; write for instance [0, 1, 2]"),
    (LISTED + "seeds: [0, 1, 0]", "3: the value 0 is given twice: the cells could not be told apart"),
    (LISTED + "seeds: [0, '1']", '3: seed = "1" should be an integer'),
    (LISTED + "seeds: [1]\nseed: 2", "4: 'seed' and 'seeds' are both given; keep one of them"),
    (LISTED + "seeds: [2.5]", "3: seed = 2.5 should be an integer"),
    (LISTED + "- {method: toy, rounds: '5'}", '3: rounds = "5" should be an integer'),
    (LISTED + "- {method: toy, clients: true}", "3: clients = true should be an integer"),
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
    (
        "methods: [[plain, toy]]\nalpha: 1",
        '1: ["plain", "toy"] should be a name, or a mapping with `name`, as in [fedavg, {name: scd, tau: 0.4}]',
    ),
    (
        "methods: [{name: [toy]}]\nalpha: 1",
        '1: {"name": ["toy"]} should be a name, or a mapping with `name`, as in [fedavg, {name: scd, tau: 0.4}]',
    ),
    (GOOD + "cases: [3]", "3: 3 should be a mapping of settings"),
    (
        GOOD + "datasets: [{name: digits, cases: [{name: a}, {name: a}]}]",
        '3: the case "a" is given twice: the cells could not be told apart',
    ),
    (
        GOOD + "cases: {name: a}",
        '3: cases = {"name": "a"} should be a list, for instance [{clients: 10, alpha: 1}, {clients: 100, alpha: 0.1}]',
    ),
    (
        GOOD + "cases: [{name: a, clients: 2}, {name: a, clients: 3}]",
        '3: the case "a" is given twice: the cells could not be told apart',
    ),
    (
        GOOD + "cases: [{name: a/b}]",
        '3: the name "a/b" of a case has a line break, a control character or a path separator',
    ),
    (GOOD + "cases: [{set: {clients: 2}}]", "3: 'set' cannot stand here: write the settings themselves, without `set`"),
    (GOOD + "cases: [{name: a, method: toy}]", "3: 'method' cannot stand here: use the axis `methods`"),
    (GOOD + "cases: [{name: a, clints: 3}]", "3: unknown key 'clints'. Did you mean 'clients'?"),
    (
        "methods: [toy]\nalphas: [1]\ncases: [{name: a, alpha: 2}]",
        "3: 'alpha' is varied by an axis of this grid; do not set it here too",
    ),
    (GOOD + "cases: [{}]", '3: the name "" of a case has 0 characters; it should have 1 to 80'),
    (GOOD + "name: ../x", '3: the name "../x" of the grid has a line break, a control character or a path separator'),
    (
        GOOD + "name: .hidden",
        '3: the name ".hidden" of the grid should not start with a dot, nor start or end with a space',
    ),
    (GOOD + "name: ''", '3: the name "" of the grid has 0 characters; it should have 1 to 80'),
    (GOOD + "name: 3", "3: name = 3 should be text"),
    (GOOD + "description: [a]", '3: description = ["a"] should be text'),
    (GOOD + "published: scd_t55", "3: unknown published table 'scd_t55'. Did you mean 'scd_t5'?"),
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


def test_the_good_part_is_good(load: Load) -> None:
    assert len(load(GOOD).cells) == 1


@pytest.mark.parametrize(("text", "expected"), BAD)
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


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, ":1: more values than a grid may have, its aliases expanded"),
        ("#" * 200_001, ": 200001 characters are too many for a grid; the limit is 200000"),
        ("[" * 100_000, ":1: not valid YAML: nested deeper than 16 levels"),
        (f"{GOOD}seeds: {list(range(1000))}\nvary: {{rounds: {list(range(1, 102))}}}",
         ": the grid has 101000 cells; the limit is 100000"),
    ],
    ids=["aliases", "long", "deep", "cells"],
)  # fmt: skip
def test_what_would_take_all_memory_is_refused_at_once(load: Load, tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(text)
    assert problem(str(caught.value), tmp_path) == f"grid.yaml{expected}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no grid file 'quickstrat'.*Did you mean 'quickstart'"):
        load_grid("quickstrat", [])
    with pytest.raises(UserError, match=r"is a folder, not a grid file\. No grid file is in it"):
        load_grid(str(tmp_path), [])
    (tmp_path / "grid.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UserError, match=r"grid\.yaml: not text in UTF-8 \(byte 6\)"):
        load_grid(str(tmp_path / "grid.yaml"), [])


WORDS = [
    "methods", "datasets", "alphas", "seeds", "vary", "cases", "set", "name", "label", "server", "toy", "plain",
    "toy.tau", "lr", "alpha", "digits", "npz", "path", "partition", "model_options", "hidden",
    "description", "published", "iid",
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
