"""Messages as bytes: what comes out is what went in, and what does not fit is refused."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from bench.engine.programs import Sent, Work
from bench.models.factory import build
from bench.params import Params, Spec
from bench.sites.forms import Forms, check_numbers, largest
from bench.sites.messages import Envelope, Identity, Packed, Refused, Unpacked, decode, encode, same_bytes

IDENTITY = Identity(protocol=1, package="1", method="fedavg", code="c", settings="s")
SPEC = Spec.of("mlp", build("mlp", (4,), 3, {"hidden": 5}))
SPECS = {SPEC.arch: SPEC}


def model(seed: int = 0) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return Params(torch.randn(SPEC.d, generator=generator), torch.zeros(0), SPEC)


def packed(values: Any) -> bytes:
    of = Packed()
    plain = of.pack(values, "")
    return encode(Envelope(identity=IDENTITY, kind="round", site=0, values=plain), of.tensors)


def unpacked(body: bytes) -> Any:
    content = decode(body)
    reader = Unpacked(content.tensors, SPECS, torch.float32)
    values = reader.unpack(content.envelope.values)
    reader.end()
    return values


plain = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
tensors = st.sampled_from([
    torch.arange(6.0).view(2, 3), torch.tensor(1.5), torch.zeros(0, 4), torch.tensor([True, False]),
    torch.arange(4, dtype=torch.uint8), torch.arange(3.0, dtype=torch.float64), torch.arange(8.0).view(2, 4).t(),
])  # fmt: skip
values = st.recursive(
    plain | st.text(max_size=5) | tensors,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_values_come_back_as_they_were(value: Any) -> None:
    back = unpacked(packed({"value": value}))
    assert same_bytes({"value": value}, back)


def test_models_and_their_parts_come_back() -> None:
    w = model()
    sent = {"w": w, "head": w.part("head"), "both": [w, {"1": w, 1: w.without("head")}]}
    back = unpacked(packed(sent))
    assert same_bytes(sent, back)
    assert back["w"].spec == SPEC
    assert back["head"].spec == w.part("head").spec


def test_a_tensor_is_stored_each_time_it_is_sent_as_the_ledger_counts_it() -> None:
    w = model()
    content = decode(packed({"first": w, "again": w}))
    assert sum(tensor.nbytes for tensor in content.tensors.values()) == 2 * w.weights.nbytes


def test_a_tensor_beside_the_values_is_refused() -> None:
    of = Packed()
    plain = of.pack({"w": model()}, "")
    body = encode(Envelope(identity=IDENTITY, kind="round", site=0, values=plain), {**of.tensors, "x": torch.ones(2)})
    with pytest.raises(Refused, match="tensors beside the values: x"):
        unpacked(body)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ({"$tensor": "missing"}, "no tensor 'missing'"),
        ([{"$tensor": "t"}, {"$tensor": "t"}], "or has it twice"),
        ({"$tensor": 3}, "no known form"),
        ({"other": 3}, "no known form"),
        ({"$dict": [["a", 1, 2]]}, "no known form"),
        ({"$dict": [[None, 1]]}, "neither text nor a whole number"),
        ({"$params": ["t", None], "spec": ["resnet", None]}, "is of a model resnet, and the cell has mlp"),
        ({"$params": ["t", None], "spec": ["mlp", ["no.such"]]}, "names tensors that mlp does not have"),
        ({"$params": ["t", None], "spec": [{"function": "os.system", "parts": []}, None]}, "no known form"),
    ],
)
def test_plain_values_of_another_form_are_refused(plain: Any, reason: str) -> None:
    body = encode(Envelope(identity=IDENTITY, kind="round", site=0, values=plain), {"t": torch.ones(2)})
    with pytest.raises(Refused, match=reason):
        unpacked(body)


WHOLE = packed({"w": model()})
NO_ENVELOPES = ["", "{}", "[]", "nonsense", '{"kind": "round"}', "NaN"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *((WHOLE[:keep], "truncated, or no message") for keep in (0, 1, 7, 8, 40, -1)),
        *((save({"t": torch.ones(1)}, {"pfleague": text}), ".") for text in NO_ENVELOPES),
        (save({"t": torch.ones(1)}, {"pfleague": "{}", "labels": "1"}), "no message of ours"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        decode(body)


def test_forms_are_learned_and_then_kept() -> None:
    """Also in nested values, and where lists are longer in the job than in its rehearsal."""
    learned = Forms()
    common = {"w": model(), "means": torch.ones(3, 4), "nested": {"5": [torch.ones(2), "text"]}, "n": 3}
    learned.learn("upload", {**common, "some": torch.ones(2), "perhaps": None})
    more = {"some": torch.ones(5), "perhaps": True, "more": torch.ones(1)}
    learned.learn("upload", {**common, "w": model(1), "nested": {}, **more})
    forms = Forms.model_validate_json(learned.model_dump_json())
    fine = {**common, "some": torch.ones(9), "perhaps": False}
    forms.check("upload", fine)
    forms.check("upload", {**fine, "n": 0.5, "nested": {7: ["one", torch.zeros(2), "two"], "8": []}})
    forms.check("upload", {**fine, "cluster2": model()}, sent={"cluster2": model(3)})
    for values, reason in [
        ({**fine, "means": torch.ones(4, 3)}, r"means is .*\[4, 3\]"),
        ({**fine, "means": torch.ones(3, 4).double()}, "means is .*float64"),
        ({**fine, "w": model().part("head")}, "w is "),
        ({**fine, "n": "text"}, r"n is \['str'\], where \['number'\] is due"),
        ({**fine, "nested": [torch.ones(2)]}, "nested is .*list"),
        ({**fine, "nested": {"5": [torch.ones(3)]}}, "nested is "),
        ({**fine, "nested": {"5": [4]}}, "nested is "),
        ({**fine, "perhaps": "text"}, "perhaps is "),
        (common, "it did not send perhaps, some"),
        ({**fine, "x": 1}, "it sent 'x', and the method sends"),
        ({**fine, "cluster2": model().part("head")}, "it sent 'cluster2'"),
        ([1], "its upload has no names"),
    ]:
        with pytest.raises(Refused, match=reason):
            forms.check("upload", values)


def test_a_dimension_of_the_rehearsal_s_sites_has_any_size_in_the_job() -> None:
    forms = Forms()
    with pytest.raises(Refused, match="it sent 'w', and the method sends nothing"):
        forms.check("upload", {"w": model()})
    forms.learn("upload", {"affinity": torch.ones(3, 4)}, clients=3)
    forms.check("upload", {"affinity": torch.ones(20, 4)})
    with pytest.raises(Refused, match="affinity is "):
        forms.check("upload", {"affinity": torch.ones(20, 5)})


SENT, WAITS = Sent({}), Sent({}, waits=True)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([Work(1, 5), SENT, SENT], "2 events of the kind 'upload' in a round, where 1 to 1 are due"),
        ([Work(1, 5)], "0 events of the kind 'upload'"),
        ([SENT, WAITS], "1 events of the kind 'exchange'"),
        ([Work(0, 0)] * 9 + [SENT], "9 events of the kind 'work' in a round, where 2 to 8 are due"),
        ([Work(201, 0), SENT], "work of 201 steps and 0 samples in a round, where 200 is the most"),
        ([Work(1, 150), Work(1, 51), SENT], "work of 2 steps and 201 samples"),
        ([Work(1, 5), Sent({}, 1e12)], r"its upload has the weight 1e\+12, and the method's uploads have none"),
    ],
)
def test_a_round_of_other_counts_work_or_weights_is_refused(events: list[Work | Sent], reason: str) -> None:
    """Learned with 10 samples, one pass and 2 pieces of work; the job's epochs are twice as many, its sites as well."""
    forms = Forms()
    forms.learn_round([Work(2, 3), Work(1, 2), SENT], 10)
    forms = forms.scaled(2, 2)
    forms.check_round([*[Work(20, 20)] * 8, SENT], 5, 100.0, ended=True)
    with pytest.raises(Refused, match=reason):
        forms.check_round(events, 5, 100.0, ended=True)


@pytest.mark.parametrize(("learned", "fine", "wrong"), [((1.0, 1.0), 1.0, 1.01), ((0.5, 2.0), 2000.0, 2001.0)])
def test_a_weight_is_within_what_the_rehearsal_saw(learned: tuple[float, float], fine: float, wrong: float) -> None:
    """A weight that is always 1 makes the mean an equal one, which no site may change."""
    forms = Forms()
    for weight in learned:
        forms.learn_round([Sent({}, weight)], 10)
    forms.check_round([Sent({}, fine)], 10, 100.0, ended=True)
    for other in (wrong, 0.0):
        with pytest.raises(Refused, match=f"its upload has the weight {other:g}, where at most"):
            forms.check_round([Sent({}, other)], 10, 100.0, ended=True)
    with pytest.raises(Refused, match="its upload has no weight"):
        forms.check_round([Sent({})], 10, 100.0, ended=True)


@given(st.floats(-(2.0**127), 2.0**127, width=32), st.integers(1, 1000), st.integers(0, SPEC.d - 1), st.booleans())
def test_a_number_of_a_model_has_a_bound_and_sums_over_samples_another(
    number: float, n: int, at: int, as_tensor: bool
) -> None:
    weights = torch.zeros(SPEC.d)
    weights[at] = number
    values = {"w": weights if as_tensor else Params(weights, torch.zeros(0), SPEC)}
    for sent, bound in ((values, 7.0), ({"sum": weights[: SPEC.d - 1]}, 7.0 * n), ({"sum": [number]}, 7.0 * n)):
        arguments = {"w": torch.tensor([-3.5, 1.0])}, 2.0, n, {SPEC.d}
        if largest(sent) <= bound:
            check_numbers(sent, *arguments)
        else:
            with pytest.raises(Refused, match=r"where .* is the most"):
                check_numbers(sent, *arguments)


def test_a_running_variance_is_a_square_and_not_negative() -> None:
    """The first round of a ResNet gives hundreds where weights are below 1; a negative one makes everybody diverge."""
    spec = Spec.of("normalised", torch.nn.BatchNorm1d(2, device="meta"))
    assert [entry.name for entry in spec.buffers] == ["running_mean", "running_var"]

    def check(*buffers: float) -> None:
        check_numbers({"w": Params(torch.ones(4), torch.tensor(buffers), spec)}, {}, 100.0, 5, {4})

    check(-9000.0, 9000.0, 0.0, 9999.0)
    with pytest.raises(Refused, match=r"\['w'\].buffers holds 10001, where 10000 is the most"):
        check(0.0, 0.0, 1.0, 10001.0)
    with pytest.raises(Refused, match="running_var is a variance, and negative"):
        check(0.0, 0.0, 1.0, -0.5)


@given(st.text(max_size=700))
def test_what_is_wrong_is_said_in_one_line_whoever_wrote_it(text: str) -> None:
    said = str(Refused(text))
    assert said.isprintable()
    assert len(said) <= 4 + 10 * 500
    if len(text) <= 500 and text.isprintable():
        assert said == text


IDENTITY_TEXT = json.dumps(IDENTITY.model_dump())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ('"n_train": 1000000000000000', "n_train: Input should be less than"),
        ('"n_train": 1e30', "n_train: Input should be a valid integer"),
        (f'"n_train": 1{"0" * 5000}', "number out of range"),
        ('"n_train": -1', "n_train: Input should be greater than"),
        (f'"version": 1{"0" * 30}', "version: Input should be less than"),
        ('"events": [{"work": [1e400, 1]}]', "events.0.work.0: Input should be a valid integer"),
        (f'"events": [{{"work": [1{"0" * 400}, 1]}}]', "events.0.work.0: Input should be less than"),
        ('"events": [{"work": [1]}]', "events.0.work.1: Field required"),
        ('"events": [{"work": [1, 2, 3]}]', "events.0.work"),
        ('"events": [{}]', "events.0: should be work, or an upload"),
        ('"events": [{"work": [1, 2], "weight": 1.0}]', "events.0: should be work, or an upload"),
        ('"events": [{"sent": 1, "weight": 1e400}]', "events.0.weight: Input should be a finite number"),
        (f'"events": [{", ".join(["{}"] * 100_001)}]', "events: List should have at most 100000 items"),
        (f'"reason": "{"x" * 601}"', "reason: String should have at most 600 characters"),
        (f'"request": "{"x" * 201}"', "request: String should have at most 200 characters"),
        ('"site": true', "site: Input should be a valid integer"),
        ('"line\\nforged": 1', r"^line\\x0aforged: Extra inputs are not permitted$"),
    ],
)
def test_every_number_and_text_has_its_range(fields: str, reason: str) -> None:
    site = "" if '"site"' in fields else '"site": 0, '
    with pytest.raises(Refused, match=reason):
        decode(save({}, {"pfleague": f'{{"identity": {IDENTITY_TEXT}, "kind": "done", {site}{fields}}}'}))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        *((f'["n", {n}]', r"values\.n is no finite number of 64 bits") for n in ("NaN", "1e400", "-1e400", str(2**64))),
        ('["n", 1], ["n", 2]', "values has a name twice"),
    ],
)
def test_plain_numbers_are_finite_and_names_stand_once(entries: str, reason: str) -> None:
    text = f'{{"identity": {IDENTITY_TEXT}, "kind": "round", "site": 0, "values": {{"$dict": [{entries}]}}}}'
    with pytest.raises(Refused, match=reason):
        unpacked(save({}, {"pfleague": text}))


def test_a_message_above_its_bytes_is_refused_before_it_is_read() -> None:
    with pytest.raises(Refused, match="a message of 11 bytes, where 10 is the most"):
        decode(b"x" * 11, limit=10)
