"""`bench from-pfllib`: the grid that computes what a command of PFLlib's `main.py` does (docs/coming-from.md).

Names and defaults of arguments are those of PFLlib at `COMMIT`, which is the newest version that was looked at.
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from bench.errors import UserError, did_you_mean

COMMIT = "d832e76"

ARGUMENTS: dict[str, tuple[str, Any]] = {
    "goal": ("go", "test"),
    "device": ("dev", "cuda"),
    "device_id": ("did", "0"),
    "dataset": ("data", "MNIST"),
    "num_classes": ("ncl", 10),
    "model": ("m", "CNN"),
    "batch_size": ("lbs", 10),
    "local_learning_rate": ("lr", 0.005),
    "learning_rate_decay": ("ld", False),
    "learning_rate_decay_gamma": ("ldg", 0.99),
    "global_rounds": ("gr", 2000),
    "top_cnt": ("tc", 100),
    "local_epochs": ("ls", 1),
    "algorithm": ("algo", "FedAvg"),
    "join_ratio": ("jr", 1.0),
    "random_join_ratio": ("rjr", False),
    "num_clients": ("nc", 20),
    "prev": ("pv", 0),
    "times": ("t", 1),
    "eval_gap": ("eg", 1),
    "save_folder_name": ("sfn", "items"),
    "auto_break": ("ab", False),
    "dlg_eval": ("dlg", False),
    "dlg_gap": ("dlgg", 100),
    "batch_num_per_client": ("bnpc", 2),
    "num_new_clients": ("nnc", 0),
    "fine_tuning_epoch_new": ("ften", 0),
    "feature_dim": ("fd", 512),
    "vocab_size": ("vs", 80),
    "max_len": ("ml", 200),
    "few_shot": ("fs", 0),
    "client_drop_rate": ("cdr", 0.0),
    "train_slow_rate": ("tsr", 0.0),
    "send_slow_rate": ("ssr", 0.0),
    "time_select": ("ts", False),
    "time_threthold": ("tth", 10000.0),
    "beta": ("bt", 0.0),
    "lamda": ("lam", 1.0),
    "mu": ("mu", 0.0),
    "K": ("K", 5),
    "p_learning_rate": ("lrp", 0.01),
    "M": ("M", 5),
    "itk": ("itk", 4000),
    "alphaK": ("alk", 1.0),
    "sigma": ("sg", 1.0),
    "alpha": ("al", 1.0),
    "plocal_epochs": ("pls", 1),
    "tau": ("tau", 1.0),
    "fine_tuning_epochs": ("fte", 10),
    "dr_learning_rate": ("dlr", 0.0),
    "L": ("L", 1.0),
    "noise_dim": ("nd", 512),
    "generator_learning_rate": ("glr", 0.005),
    "hidden_dim": ("hd", 512),
    "server_epochs": ("se", 1000),
    "localize_feature_extractor": ("lf", False),
    "server_learning_rate": ("slr", 1.0),
    "eta": ("et", 1.0),
    "rand_percent": ("s", 80),
    "layer_idx": ("p", 2),
    "mentee_learning_rate": ("mlr", 0.005),
    "T_start": ("Ts", 0.95),
    "T_end": ("Te", 0.98),
    "momentum": ("mo", 0.1),
    "kl_weight": ("klw", 0.0),
    "first_stage_bound": ("fsb", 0),
    "fedcross_alpha": ("ca", 0.99),
    "collaberative_model_select_strategy": ("cmss", 1),
}
"""The arguments of `main.py`: long name, short name, default. The type of the default is that of the value; of a switch
any text but an empty one is true."""

Arguments = Mapping[str, Any]


class Here(NamedTuple):
    """A method here that computes what an algorithm of PFLlib does.

    Attributes:
        method: its id.
        options: its options, from PFLlib's arguments.
        settings: settings of the cell that the algorithm needs.
        notes: by argument of PFLlib, what is missing here or has another meaning.
        split: PFLlib divides its networks into body and head.
    """

    method: str
    options: Callable[[Arguments], dict[str, Any]] = lambda a: {}
    settings: Callable[[Arguments], dict[str, Any]] = lambda a: {}
    notes: Mapping[str, str] = {}
    split: bool = True


def _whole(method: str, options: Callable[[Arguments], dict[str, Any]] = lambda a: {}, **further: Any) -> Here:
    """An algorithm whose networks PFLlib leaves whole."""
    return Here(method, options, split=False, **further)


_ALONE = "its pull is made of values without a gradient, so it trains every client alone; the paper's method is"

ALGORITHMS: dict[str, Here] = {
    "FedAvg": Here("fedavg"),
    "Local": _whole("local", lambda a: {"selected_only": a["join_ratio"] < 1}),
    "FedMTL": _whole(
        "local", lambda a: {"selected_only": a["join_ratio"] < 1},
        notes={"algorithm": f"{_ALONE} `fedmtl`", "itk": "PFLlib stores it and does not use it"},
    ),
    "PerAvg": _whole(
        "perfedavg", lambda a: {"variant": "fo", "alpha": a["local_learning_rate"], "personal_steps": 1},
        notes={"algorithm": "clients count alike here, there by training samples"},
    ),
    "pFedMe": _whole(
        "pfedme", lambda a: {
            "lam": a["lamda"], "K": a["K"], "eta": a["local_learning_rate"], "eta_p": a["p_learning_rate"],
            "beta": a["beta"],
        },
        settings=lambda a: {"weight_decay": 0.001},
        notes={"algorithm": "with the weight decay of PFLlib's steps on theta, which the paper has not"},
    ),
    "FedProx": _whole("fedprox", lambda a: {"mu": a["mu"]}),
    "FedFomo": _whole(
        "fedfomo", lambda a: {"models": max(0, a["M"] - 1), "explore": 0.0},
        notes={"M": "a client's own model counts there, and not here"},
    ),
    "FedAMP": _whole(
        "local", lambda a: {"selected_only": a["join_ratio"] < 1},
        notes={"algorithm": f"{_ALONE} `fedamp`"}
        | dict.fromkeys(("alphaK", "lamda", "sigma"), "without effect there: see -algo"),
    ),
    "APFL": _whole("apfl", lambda a: {"alpha": a["alpha"]}),
    "FedPer": Here("fedper"),
    "Ditto": _whole("ditto", lambda a: {"lam": a["mu"], "personal_epochs": a["plocal_epochs"]}),
    "FedRep": Here("fedrep", lambda a: {"head_epochs": a["plocal_epochs"], "body_epochs": a["local_epochs"]}),
    "FedPHP": Here("fedphp", lambda a: {"lam": a["lamda"], "mu": a["mu"], "rounds": a["global_rounds"]}),
    "FedBN": _whole("fedbn"),
    "FedROD": Here("fedrod"),
    "FedProto": Here("fedproto", lambda a: {"lam": a["lamda"], "distance": "samples", "average": "clients"}),
    "FedDyn": _whole("feddyn", lambda a: {"alpha": a["alpha"]}),
    "MOON": Here("moon", lambda a: {"mu": a["mu"], "tau": a["tau"]}),
    "FedBABU": Here(
        "fedbabu", lambda a: {"fine_tune_epochs": a["fine_tuning_epochs"]},
        settings=lambda a: {"eval_every": a["global_rounds"]},
        notes={"eval_gap": "clients fine-tune once, after the last round, so only that is tested"},
    ),
    "APPLE": _whole(
        "apple",
        lambda a: {"mu": a["mu"], "fade": int(a["L"] * a["global_rounds"]), "p_lr": a["dr_learning_rate"]},
        settings=lambda a: {"lr": a["local_learning_rate"] * a["num_clients"]},
        notes={
            "local_learning_rate": "times the number of clients, as PFLlib does",
            "dr_learning_rate": "there of a slope that is a mean over entries and layers, here of their sum",
        },
    ),
    "FedGen": Here(
        "fedgen", lambda a: {
            "alpha": 1.0, "beta": 0.0, "decay": 1.0, "diversity": 0.0, "generator_decay": 0.0,
            "generator_steps": a["server_epochs"], "generator_batch": a["batch_size"],
            "generator_lr": a["generator_learning_rate"], "hidden": a["hidden_dim"], "noise": a["noise_dim"],
        },
        notes={"localize_feature_extractor": "there is no form that sends the head alone"},
    ),
    "SCAFFOLD": _whole("scaffold", lambda a: {"server_lr": a["server_learning_rate"]}),
    "FD": _whole("fd", lambda a: {"lam": a["lamda"], "outputs": "logits", "teachers": "all"}),
    "FedALA": _whole(
        "fedala", lambda a: {
            "eta": a["eta"], "share": a["rand_percent"] / 100, "tested": "mixed",
            "layers": ["body", "head"] if a["layer_idx"] == 0 else ["head"],
        },
        notes={"layer_idx": "PFLlib counts tensors from the end: 2 is the head, 0 all; for others name the `layers`"},
    ),
    "FedPAC": Here("fedpac", lambda a: {"lam": a["lamda"], "head_epochs": 1}),
    "LG-FedAvg": Here("lgfedavg"),
    "FedGC": Here("fedgc", lambda a: {"correction": a["local_learning_rate"] * a["lamda"]}),
    "FML": _whole("fml", lambda a: {"alpha": a["alpha"], "beta": a["beta"]}),
    "FedKD": Here(
        "fedkd", lambda a: {"start": a["T_start"], "end": a["T_end"], "rounds": a["global_rounds"]},
        notes={
            "algorithm": "its shared model has the rate of -lr here, and that of -mlr there",
            "mentee_learning_rate": "see -algo",
        },
    ),
    "FedPCL": _whole("fedpcl", lambda a: {"tau": a["tau"]}),
    "FedCP": Here("fedcp", lambda a: {"lam": a["lamda"]}),
    "GPFL": Here("gpfl", lambda a: {"lam": a["lamda"], "mu": a["mu"]}),
    "FedNTD": _whole("fedntd", lambda a: {"beta": a["beta"], "tau": a["tau"]}),
    "FedGH": Here("fedgh", lambda a: {"server_lr": a["server_learning_rate"]}),
    "FedDBE": Here("feddbe", lambda a: {"kl": a["kl_weight"], "momentum": a["momentum"]}),
    "FedCAC": _whole("fedcac", lambda a: {"tau": a["tau"], "beta": int(a["beta"])}),
    "PFL-DA": Here(
        "pflda", lambda a: {"lam": 0.0}, notes={"lamda": "without effect there, as the distance has no gradient"}
    ),
    "FedLC": Here("fedlc", lambda a: {"tau": a["tau"]}, notes={"tau": "margins there are of all clients' counts"}),
    "FedAS": Here("fedas"),
    "FedCross": _whole(
        "fedcross", lambda a: {
            "alpha": a["fedcross_alpha"],
            "collaborator": ("in_order", "lowest", "highest")[a["collaberative_model_select_strategy"]],
        },
        notes={
            "first_stage_bound": "there is no first stage of another rule",
            "collaberative_model_select_strategy": "0 is always the next model there, the others in turn here",
        },
    ),
}  # fmt: skip
"""The algorithms of `main.py` that there are here."""

_OTHER = "another network here: PFLlib's is not built in, and a plug-in can have it"
_LAYERS = "the number of layers and the dropout are others here"

MODELS: dict[str, tuple[str, Callable[[Arguments], dict[str, Any]], str]] = {
    "MLR": ("logistic", lambda a: {}, ""),
    "CNN": ("cnn", lambda a: {}, ""),
    "DNN": ("mlp", lambda a: {"hidden": 100 if _of_pictures(a["dataset"]) else 20}, ""),
    "ResNet18": ("torchvision/resnet18", lambda a: {}, ""),
    "ResNet10": ("resnet18", lambda a: {}, _OTHER),
    "ResNet34": ("torchvision/resnet34", lambda a: {}, ""),
    "AlexNet": ("torchvision/alexnet", lambda a: {}, "PFLlib has a copy of torchvision's, which may differ"),
    "GoogleNet": ("torchvision/googlenet", lambda a: {"aux_logits": False, "init_weights": True}, ""),
    "MobileNet": ("torchvision/mobilenet_v2", lambda a: {}, "PFLlib has a copy of torchvision's, which may differ"),
    "LSTM": ("gru", lambda a: {"embedding": a["feature_dim"], "hidden": a["feature_dim"], "layers": 2}, _OTHER),
    "BiLSTM": ("gru", lambda a: {"embedding": a["feature_dim"], "hidden": a["feature_dim"]}, _OTHER),
    "fastText": ("pfllib_fasttext", lambda a: {"embedding": a["feature_dim"], "hidden": a["feature_dim"]}, ""),
    "TextCNN": ("textcnn", lambda a: {"embedding": a["feature_dim"], "filters": 100}, _LAYERS),
    "Transformer": ("transformer", lambda a: {"width": a["feature_dim"], "layers": 2, "heads": 8}, _LAYERS),
    "AmazonMLP": ("mlp", lambda a: {"hidden": 500, "layers": 3}, "hidden layers of 1000, 500 and 100 there"),
    "HARCNN": ("har_cnn", lambda a: {}, _OTHER),
}
"""The models of `main.py`: the nearest one here, its options, and a note where it is another network."""

_LOG_SOFTMAX = ("MLR", "DNN", "fastText", "LSTM", "TextCNN")
_WITHOUT = {
    "device": "no part of a grid: `bench run --device`",
    "device_id": "no part of a grid: the variable CUDA_VISIBLE_DEVICES says which GPUs are used",
    "num_classes": "the folder says how many classes there are",
    "top_cnt": "there is no early stop",
    "auto_break": "there is no early stop: all rounds are run",
    "random_join_ratio": "the share of selected clients is fixed",
    "save_folder_name": "no part of a grid: `bench run --keep` keeps models in the run folder",
    "dlg_eval": "PFLlib's attack on gradients is not here",
    "dlg_gap": "PFLlib's attack on gradients is not here",
    "batch_num_per_client": "PFLlib's attack on gradients is not here",
    "learning_rate_decay_gamma": "without effect, as there is no -ld",
    "fine_tuning_epoch_new": "without effect, as there is no -nnc",
    "feature_dim": "without effect, as it is for models of texts",
    "vocab_size": "without effect, as it is for texts",
    "max_len": "the folder says how long texts are",
    "few_shot": "all training samples are used; generate a smaller folder",
    "train_slow_rate": "clients do not sleep; `clock` simulates slow ones",
    "send_slow_rate": "clients do not sleep; `clock` simulates slow ones",
    "time_select": "PFLlib stores it and does not use it",
    "time_threthold": "no client is left out for its time; `clock` simulates slow ones",
}
"""Arguments of all algorithms that a grid has no place for, and why."""


def from_pfllib(
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- ARGUMENT...", help="The arguments of PFLlib's `main.py`, after `--`.")
    ],
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder `dataset` of PFLlib, as the grid is to name it.")
    ] = Path("../dataset"),
) -> None:
    """Print the grid that computes what a command of PFLlib's `main.py` computes."""
    from bench.config import yaml_lines

    grid, notes = translate(arguments, folder)
    print(f"# python main.py {shlex.join(arguments)}  (PFLlib {COMMIT})")
    print(yaml_lines.dump(grid), end="")
    for note in notes:
        print(f"# {note}")


def translate(words: list[str], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The grid of a command of `main.py`, and one line for each argument without a counterpart or of another meaning.

    Args:
        words: the arguments of `main.py`.
        folder: the folder that holds the data sets' folders.

    Raises:
        UserError: `main.py` would refuse them, the algorithm or the model is not here, or a value is none here.
    """
    from bench.config.grid import load_grid

    given = _given(words)
    values = _Recorded({name: default for name, (_, default) in ARGUMENTS.items()} | given)
    here = _known(ALGORITHMS, "algo", values["algorithm"], "algorithm")
    model, model_options, model_note = _known(MODELS, "m", values["model"], "model")
    method = {"name": here.method, **here.options(values)}
    grid = {**_data(values, folder), **_training(values), "model": model, "model_options": model_options(values)}
    grid = {"name": grid.pop("name"), "methods": [method], **grid, **here.settings(values)}
    notes = {name: _WITHOUT.get(name, f"{values['algorithm']} does not read it there") for name in given}
    notes |= dict.fromkeys(values.read, "") | {"model": model_note} | here.notes | _of_values(values)
    if here.split and values["model"] in _LOG_SOFTMAX:
        notes["model"] = "PFLlib leaves the log-softmax of this network in the body, before the head; ours has none"
    grid = {key: value for key, value in grid.items() if value not in ({}, None)}
    try:
        load_grid(grid)
    except UserError as error:
        raise UserError(f"-algo {values['algorithm']} with these arguments is no cell here: {error}") from None
    at_work = {*given, *values.read}
    return grid, [
        *(f"-{ARGUMENTS[name][0]}: {text}" for name, text in notes.items() if text and name in at_work),
        "a client's short last batch is trained on here and dropped there, and means over clients weigh by training "
        "samples here and by test samples there",
        f"what else differs: docs/methods/{here.method}.md and docs/coming-from.md",
    ]


class _Recorded(dict[str, Any]):
    """Values that remember which of them were read."""

    def __init__(self, values: Arguments) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


def _given(words: list[str]) -> dict[str, Any]:
    """Read the arguments that are given, as `main.py`'s parser does.

    Raises:
        UserError: `main.py` would refuse them.
    """
    import argparse  # every command imports this file

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UserError(f"PFLlib's main.py would refuse this: {message}")

    parser = Parser(prog="main.py", add_help=False)
    for name, (short, default) in ARGUMENTS.items():
        parser.add_argument(f"-{short}", f"--{name}", type=type(default), default=argparse.SUPPRESS)
    return vars(parser.parse_args(words))


def _known(table: Mapping[str, Any], short: str, name: str, noun: str) -> Any:
    """The entry of a table.

    Raises:
        UserError: there is none.
    """
    if name not in table:
        hint = did_you_mean(name, list(table)) or f" There are {', '.join(table)}."
        raise UserError(f"-{short} {name}: PFLlib's {noun} {name!r} is not here.{hint}")
    return table[name]


def _of_pictures(dataset: str) -> bool:
    """Whether PFLlib makes the larger of its MLPs for a data set."""
    return "MNIST" in dataset or "Cifar10" in dataset


def _data(a: Arguments, folder: Path) -> dict[str, Any]:
    """Settings of the data and of the clients.

    Raises:
        UserError: no client would train, or no trial would run.
    """
    clients, new = a["num_clients"], a["num_new_clients"]
    selected = int(clients * a["join_ratio"])
    if selected < 1:
        raise UserError(f"-jr {a['join_ratio']} selects none of {clients} clients")
    if not (seeds := [*range(a["prev"], a["times"])]):
        raise UserError(f"-pv {a['prev']} -t {a['times']} leaves no trial to run")
    data = {"name": "pfllib", "path": (folder / a["dataset"]).as_posix(), "first": clients + new}
    if "News" in a["dataset"] or "Shakespeare" in a["dataset"]:
        data["vocabulary"] = a["vocab_size"]
    held_out = {"held_out": [*range(clients, clients + new)]} if new else {}
    adapting = {"new_client_epochs": [a["fine_tuning_epoch_new"]], "new_client_start": "generic"} if new else {}
    return {
        "name": "_".join(a[name].lower() for name in ("dataset", "algorithm", "goal")), "datasets": [data],
        "partition": "natural", "partition_options": held_out, "clients": "all", **adapting, "seeds": seeds,
        "participation": selected / clients,
        "clock": {"dropout": a["client_drop_rate"]} if a["client_drop_rate"] else None,
    }  # fmt: skip


def _training(a: Arguments) -> dict[str, Any]:
    """Settings of training and of what is reported."""
    return {
        "protocol": "paper", "batchnorm": "local", "precision": "fp32", "rounds": a["global_rounds"],
        "epochs": a["local_epochs"], "batch_size": a["batch_size"], "lr": a["local_learning_rate"],
        "lr_decay": a["learning_rate_decay_gamma"] if a["learning_rate_decay"] else None, "eval_every": a["eval_gap"],
    }  # fmt: skip


def _of_values(a: Arguments) -> dict[str, str]:
    """Notes on arguments whose meaning here is another one with these values."""
    notes = {}
    clients, ratio = a["num_clients"], a["join_ratio"]
    if int(clients * ratio) != clients * ratio:
        notes["join_ratio"] = f"rounded down as there: {int(clients * ratio)} of {clients} clients"
    if a["learning_rate_decay"]:
        notes["learning_rate_decay"] = (
            "any text switches it on there, `False` too; there a client's rate falls with the rounds that it takes "
            "part in, here with all"
        )
    if a["client_drop_rate"]:
        notes["client_drop_rate"] = (
            "here each selected client stays away with this probability; there this share of those that have trained "
            "is left out of the mean"
        )
    return notes
