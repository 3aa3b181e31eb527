"""The resolved settings of one cell: all scientific settings, none about the machine."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import TypeAliasType

from bench.plugin import ATTACKS, CHANNELS, DATASETS, SERVER_RULES, SHIFTS, Registry
from bench.profiles import Listed, Profile, Strict, alone, resolve

DEFAULT_SELECTION = "uniform"
POISSON = "poisson"
"""The selection of each client by its own coin, for which noise on a sum has the smallest epsilon."""

BY_GROUPS = ("natural", "natural_leaf")
"""Partitions whose clients are groups of the data, so that the data say how many there are."""

RECORDED = ("accuracy", "loss")
"""Scores that every evaluation has, whatever `metrics` lists."""

MAIN_MEANS = ("", "train_size")
"""Means over clients of the figures that stand for a model: one pool of samples, or weighted by training size."""

SCORING = frozenset({"metrics", "select_by", "tests"})
"""Settings of how a cell is scored, on which training does not depend."""

PRESENTATION = SCORING | {"label", "case"}
"""Settings of how a cell is scored, named and shown: they are no part of its id."""

Executor = Literal["auto", "sequential", "cohort", "debug"]
"""How clients are trained, which is no part of a cell's settings: one after the other, or as a cohort."""


def data_name(dataset: str, options: Mapping[str, Any]) -> str:
    """The name of a data set in tables: a user's own data have the name given to them, or that of their file."""
    return str(options.get("name") or (PurePath(options["path"]).stem if options.get("path") else dataset))


def _named(value: Any) -> Any:
    """Turn a bare name into a mapping."""
    return {"name": value} if isinstance(value, str) else value


class RegisteredPart(BaseModel):
    """A registered part of a cell with its options, such as `{name: top_k, share: 0.01}`.

    A bare name is one that has its defaults, which `bench.config.validation` fills in from the registry. Plain settings
    hold the options as they were written, because what somebody else's run used need not be known here.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    registry: ClassVar[Registry[Any]]
    noun: ClassVar[str]

    name: str

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: Any) -> Any:
        value = _named(value)
        if not isinstance(value, Mapping | cls) or (isinstance(value, Mapping) and "name" not in value):
            raise ValueError(f"should be the name of {cls.noun} or a mapping with `name`")
        return value

    @property
    def options(self) -> dict[str, Any]:
        """Options by name, as they were written."""
        return dict(self.model_extra or {})

    def __getitem__(self, option: str) -> Any:
        return self.name if option == "name" else self.options[option]


class ServerPart(RegisteredPart):
    """A server rule."""

    registry, noun = SERVER_RULES, "a server rule"


class ShiftPart(RegisteredPart):
    """A shift of clients' samples."""

    registry, noun = SHIFTS, "a shift"


class OperationPart(RegisteredPart):
    """An operation of the channel."""

    registry, noun = CHANNELS, "an operation"


class AttackPart(RegisteredPart):
    """An attack by malicious clients."""

    registry, noun = ATTACKS, "an attack"


class PublicSet(RegisteredPart):
    """Public samples from any data set with the shape of the clients' data; all further keys are its options."""

    registry, noun = DATASETS, "a data set"

    size: int | None = Field(None, ge=1, description="samples, drawn by the seed from the training part; empty: all")


def _several(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("should be a list of names, or of mappings with `name`")
    return tuple(value)  # since strict validation, of what is nested, rejects a list for a tuple


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    names = [getattr(value, "name", value) for value in values]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{repeated[0]!r} is listed twice")
    return values


Shifts = Annotated[tuple[ShiftPart, ...], BeforeValidator(_several), AfterValidator(_once)]


class ModelsBySize(Strict):
    """Architectures drawn for each client; a client with more training samples is less likely to get the last one."""

    by: Literal["size"]
    models: Annotated[tuple[str, ...], Listed] = Field(min_length=2, description="the last is that of small clients")


_Decay = Annotated[float, Field(ge=0, lt=1)]


class SgdSettings(Strict):
    """Stochastic gradient descent, whose `momentum` and `nesterov` are separate settings of the cell."""

    name: Literal["sgd"] = "sgd"


class AdamSettings(Strict):
    """Adam, or AdamW, whose weight decay is apart from the gradient."""

    name: Literal["adam", "adamw"]
    betas: Annotated[tuple[_Decay, _Decay], Listed] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)


OptimizerSettings = TypeAliasType(
    "OptimizerSettings", Annotated[SgdSettings | AdamSettings, Field(discriminator="name")]
)
"""The optimizer of local training; learning rate and weight decay are separate settings of the cell."""


class PrivateTraining(Strict):
    """Training with differential privacy of samples: each one's gradient is clipped, their sum has noise (DP-SGD)."""

    norm: float = Field(1.0, gt=0, allow_inf_nan=False, description="largest norm of a sample's gradient")
    noise: float = Field(1.0, ge=0, allow_inf_nan=False, description="standard deviation in units of the norm")
    delta: float = Field(1e-5, gt=0, lt=1, description="of epsilon")


class FurtherTest(Strict):
    """Further test samples for a cell's models (docs/scores.md)."""

    name: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its rows in tables."""
        return (self.name,)


class PlainTest(FurtherTest):
    """Samples of all clients or of the others, or the cell's own with the trigger of its attack."""

    name: Literal["global", "others", "triggered"]


class CorruptedTest(FurtherTest):
    """The test samples with corruptions."""

    name: Literal["corrupted"]
    severity: int | None = Field(None, ge=1, le=5, description="empty: all five")
    kinds: Annotated[tuple[str, ...], Listed] = Field((), description="empty: all fifteen")

    @property
    def labels(self) -> tuple[str, ...]:
        """Each corruption at each severity has a name, such as `corrupted fog 3`."""
        severities = range(1, 6) if self.severity is None else (self.severity,)
        return tuple(f"corrupted {kind} {severity}" for kind in self.kinds for severity in severities)


class ShiftedTest(FurtherTest):
    """The test samples with other shifts than the cell's."""

    name: Literal["shifted"]
    shifts: Shifts = Field(min_length=1, description="as a cell's")

    @property
    def labels(self) -> tuple[str, ...]:
        """The shifts with their options."""
        texts = (
            " ".join([shift.name, *(f"{key}={value}" for key, value in shift.options.items())]) for shift in self.shifts
        )
        return (f"shifted {' + '.join(texts)}",)


class FileTest(FurtherTest):
    """Samples of an .npz file."""

    name: Literal["file"]
    path: str = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The file's name without its ending."""
        return (f"file {PurePath(self.path).stem}",)


KindOfTest = TypeAliasType(
    "KindOfTest", Annotated[PlainTest | CorruptedTest | ShiftedTest | FileTest, Field(discriminator="name")]
)

NO_TRIGGER = "tests: triggered needs a cell with an attack that has a trigger, such as `attack: backdoor`"


class Adapters(Strict):
    """Adapters in layers of a model. Beside them only the layers of `train` are trained; all others are frozen."""

    name: str
    layers: Annotated[tuple[str, ...], Listed] = Field(
        (), description="by the last part of their names or their beginning, e.g. [qkv]; empty: all that can have one"
    )
    train: Annotated[tuple[str, ...], Listed] = Field(
        ("head",), description="layers that are trained whole beside the adapters, by the beginning of their names"
    )


class LoraSettings(Adapters):
    """Low-rank adaptation: alpha / rank B A is added to a weight."""

    name: Literal["lora"]
    rank: int = Field(8, ge=1, description="of its two matrices")
    alpha: float = Field(16.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1, description="of the input of its matrices, in training")


class BottleneckSettings(Adapters):
    """A bottleneck after a layer."""

    name: Literal["adapter"]
    rank: int = Field(64, ge=1, description="its width")


class PlainAdapters(Adapters):
    """Adapters without a size: a factor for each output, or biases that are trained."""

    name: Literal["ia3", "bias_only"]


AdapterSettings = LoraSettings | BottleneckSettings | PlainAdapters
"""Kinds of adapters; `bench/models/adapters.py` has them."""


NotNegative = Annotated[int, Field(ge=0)]
_FromTo = Annotated[tuple[NotNegative, NotNegative] | None, Listed]


class DataChange(Strict):
    """A change of the clients' data after a round (docs/changing-data.md)."""

    round: int = Field(ge=1, description="the last round before the change")
    shifts: Shifts | None = Field(None, description="the shifts from then on, in place of those before; []: none")
    exchange: float | None = Field(None, gt=0, le=1, description="share of the clients that exchange their samples")
    add_classes: int | None = Field(None, ge=1, description="number of classes that no client had before")
    arrive: _FromTo = Field(None, description="the first and the last of the clients that join")
    leave: _FromTo = Field(None, description="the first and the last of the clients that leave")

    @model_validator(mode="after")
    def _check_something_changes(self) -> "DataChange":
        kinds = [name for name in type(self).model_fields if name != "round"]
        if all(getattr(self, name) is None for name in kinds):
            raise ValueError(f"nothing changes after round {self.round}: give one of {', '.join(kinds)}")
        for name in ("arrive", "leave"):
            clients = getattr(self, name)
            if clients and clients[0] > clients[1]:
                raise ValueError(f"{name} = {list(clients)} should be the first and the last client, such as [60, 79]")
        return self


def clients_between(ends: tuple[int, int] | None) -> set[int]:
    """The clients from the first to the last of a change that arrive or leave; nobody where it names none."""
    return set(range(ends[0], ends[1] + 1)) if ends else set()


def _switch(value: Any) -> Any:
    """Accept `on` and `off`, which are text in grid files."""
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


Late = Annotated[NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)], AfterValidator(alone)]


def noise_of(channel: Any) -> dict[str, Any] | None:
    """The entry `gaussian` of a channel, as settings hold it or as a user wrote it; None if there is none."""
    written = channel if isinstance(channel, list | tuple) else ()
    entries = (entry.model_dump() if isinstance(entry, RegisteredPart) else _named(entry) for entry in written)
    return next((entry for entry in entries if isinstance(entry, dict) and entry.get("name") == "gaussian"), None)


class Settings(BaseModel):
    """Settings of one training run: method x data set x alpha x seed. Unknown keys are errors.

    A grid file gives these as common settings or as axes; `hp` holds the method's hyperparameters, which the
    hyperparameter class in the method's file validates.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    label: str = Field("", description="name in tables; empty: the method's name")
    case: str = Field("", description="in tables: what tells cells of one label, data set, alpha and seed apart")
    hp: dict[str, Any] = Field(default_factory=dict, description="the method's own settings")
    server: ServerPart | None = Field(None, description="server rule, e.g. {name: fedbuff, buffer: 10}")

    dataset: str = "digits"
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    normalise: Literal["per_client", "pooled"] | None = Field(
        None,
        description="inputs, by statistics of training samples: each client's, or all clients'; empty: the data set's",
    )
    public: PublicSet | None = Field(None, description="public samples, for methods that need some")
    partition: str = "dirichlet"
    partition_options: dict[str, Any] = Field(default_factory=dict)
    shifts: Shifts = Field(
        (), description="how clients' samples differ, e.g. [{name: rotation, groups: 4}]; applied in this order"
    )
    timeline: tuple[DataChange, ...] = Field(
        (), description="changes of the data by round, e.g. [{round: 20, shifts: [...]}, {round: 40, add_classes: 2}]"
    )
    alpha: float | None = Field(None, gt=0, description="Dirichlet concentration; none where the partition has none")
    clients: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        "all", description="`all`: every group of the data, the default of natural partitions; of others: 20"
    )
    seed: int = Field(0, ge=0)
    partition_seed: int | None = Field(None, ge=0, description="default: the seed")
    protocol: Literal["honest", "paper", "tuning"] = Field(
        "honest", description="`tuning`: as `honest`, without any test split; trials of a sweep"
    )
    validation_share: float = Field(0.2, ge=0, lt=1, description="of each client's training data; not under `paper`")

    model: str = "mlp"
    model_options: dict[str, Any] = Field(default_factory=dict)
    client_models: tuple[str, ...] | ModelsBySize = Field(
        (), description="architectures by client: in turn or {by: size, models: [...]}; empty: `model` for all"
    )
    pretrained: str | None = Field(
        None,
        description="file of a state dict that `model` starts from; the last layer, too, if it has as many classes",
    )
    frozen: tuple[str, ...] = Field(
        (), description="layers that are neither trained nor sent, by the beginning of their names, e.g. [body]"
    )
    adapters: Annotated[Annotated[AdapterSettings, Field(discriminator="name")] | None, BeforeValidator(_named)] = (
        Field(
            None,
            description="small trained parts of a frozen model, e.g. {name: lora, rank: 8, alpha: 16, layers: [qkv]}",
        )
    )
    augment: Literal["none", "crop_flip"] = Field("none", description="of training images: 4-pixel crops and mirroring")
    batchnorm: Literal["aggregate", "local"] = Field("aggregate", description="what happens to running statistics")
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="of matrix products and convolutions; bf16: weights, losses and scores stay float32"
    )

    rounds: int = Field(30, ge=1, description="server versions")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients selected in a round")
    selection: str = Field(
        DEFAULT_SELECTION,
        description="how they are selected: uniform, poisson, by_size, round_robin or one's own; default with noise on "
        "the sum of some clients' updates: poisson",
    )
    channel: Annotated[tuple[OperationPart, ...], BeforeValidator(_several), AfterValidator(_once)] = Field(
        (), description="operations on uploads, e.g. [{name: top_k, share: 0.01}, {name: cast, to: fp16}]"
    )
    attack: AttackPart | None = Field(
        None, description="what malicious clients do, e.g. {name: sign_flip, share: 0.2} (docs/attacks.md)"
    )
    unselected: Literal["idle", "broadcast", "cap"] = Field(
        "idle",
        description="in synchronous rounds: personal training of who is not selected (Appendix F of the SCD paper)",
    )
    unselected_steps: int = Field(100, ge=0, description="`cap`: most local steps since a client was last selected")
    new_clients: int = Field(0, ge=0, description="clients held out of training, scored after the last round")
    new_client_epochs: Annotated[tuple[NotNegative, ...], AfterValidator(_once)] = Field(
        (0, 1, 5, 10), min_length=1, description="how long new clients adapt before a score"
    )
    new_client_start: Literal["method", "generic"] = Field(
        "method", description="new clients adapt as the method says, or all of them fine-tune the whole generic model"
    )
    epochs: int = Field(1, ge=0, description="local epochs of a round")
    steps: int | None = Field(None, ge=0, description="local steps of a round instead of epochs")
    batch_size: int = Field(10, ge=1)
    lr: float = Field(0.01, gt=0)
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate after each round")
    optimizer: Annotated[OptimizerSettings, BeforeValidator(_named)] = Field(
        SgdSettings(), description="of local training: sgd, adam, adamw, or {name: adam, betas: [...], eps: ...}"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    nesterov: bool = Field(False, description="of sgd")
    weight_decay: float = Field(0.0, ge=0)
    grad_clip: float | None = Field(None, gt=0, description="largest norm of a gradient")
    dp_sgd: PrivateTraining | None = Field(
        None, description="each sample's gradient is clipped and their sum has noise: {norm: 1, noise: 1, delta: 1e-5}"
    )

    clock: Annotated[Profile, BeforeValidator(resolve)] = Field(
        default_factory=Profile, description="simulated devices and network: a preset or a mapping, see docs/clock.md"
    )
    wait_free: Annotated[bool, BeforeValidator(_switch)] = Field(
        True,
        description="off: uploads leave at the end of the local work; in synchronous rounds this changes seconds only",
    )
    pm_until_broadcast: bool = Field(
        False, description="training after the upload goes on until the next model arrives on the simulated clock"
    )
    stragglers: dict[int, Late] = Field(
        default_factory=dict,
        description="round clock only: by how many rounds a client's answer is late; a list: its rounds, in turn",
    )

    eval_every: int = Field(1, ge=1, description="rounds between evaluations; the last round is always evaluated")
    metrics: Annotated[tuple[str, ...], AfterValidator(_once)] = Field(
        (), description="scores beside accuracy and loss, e.g. [auroc, ece], or one's own (docs/scores.md)"
    )
    select_by: str = Field("accuracy", description="the validation score by which the reported round is chosen")
    tests: tuple[Annotated[KindOfTest, BeforeValidator(_named)], ...] = Field(
        (), description="further tests of the reported models, e.g. [global, {name: corrupted, severity: 3}]"
    )

    @model_validator(mode="before")
    @classmethod
    def _number_clients(cls, values: Any) -> Any:
        """Give partitions that need a number of clients the default one."""
        if isinstance(values, dict) and "clients" not in values and values.get("partition") not in BY_GROUPS:
            return {**values, "clients": 20}
        return values

    @model_validator(mode="before")
    @classmethod
    def _select_for_noise(cls, values: Any) -> Any:
        """Select by Poisson sampling where noise is on the sum of some clients' updates, if no selection is given."""
        if not isinstance(values, dict) or "selection" in values or values.get("participation", 1) == 1:
            return values
        noise = noise_of(values.get("channel"))
        on_sum = noise is not None and noise.get("on", "sum") == "sum"
        return {**values, "selection": POISSON} if on_sum else values

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that `client_models` names."""
        return self.client_models.models if isinstance(self.client_models, ModelsBySize) else self.client_models

    @property
    def arriving(self) -> set[int]:
        """The clients that are not there at first: the first thing that the timeline says of them is that they
        arrive."""
        late: set[int] = set()
        known: set[int] = set()
        for change in self.timeline:
            left, came = clients_between(change.leave), clients_between(change.arrive)
            late |= came - left - known
            known |= left | came
        return late

    @property
    def last_change(self) -> int:
        """The last round before the clients' data are those that they have in the end; 0 where they never change."""
        return self.timeline[-1].round if self.timeline else 0

    @property
    def further_metrics(self) -> tuple[str, ...]:
        """The scores of `metrics` that not every evaluation has."""
        return tuple(name for name in self.metrics if name not in RECORDED)

    @property
    def further_tests(self) -> tuple[FurtherTest, ...]:
        """The further tests of the cell's models, with that of an attack that puts a trigger on samples; a trial of a
        sweep has none, as it sees no tests."""
        if self.protocol == "tuning":
            return ()
        missing = self.has_trigger and not any(test.name == "triggered" for test in self.tests)
        return (*self.tests, PlainTest(name="triggered")) if missing else self.tests

    def selected(self, clients: int) -> int:
        """Count the clients that a round selects from those that train, unless the method needs all of them."""
        return max(1, round(self.participation * clients))

    @property
    def has_trigger(self) -> bool:
        """Whether the cell's attack puts a trigger on samples: it then has a target class."""
        return self.attack is not None and "target" in self.attack.options

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.label or self.method
