"""Messages as bytes: what comes out is what went in, and what does not fit is refused."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from bench.models.factory import build
from bench.params import Params, Spec
from bench.sites.forms import Forms
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


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 40, -1])
def test_a_truncated_message_is_refused(keep: int) -> None:
    with pytest.raises(Refused, match="truncated, or no message"):
        decode(packed({"w": model()})[:keep])


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", json.dumps({"kind": "round"}), "NaN"])
def test_an_envelope_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        decode(save({"t": torch.ones(1)}, {"pfleague": text}))


def test_other_metadata_are_refused() -> None:
    with pytest.raises(Refused, match="no message of ours"):
        decode(save({"t": torch.ones(1)}, {"pfleague": "{}", "labels": "1"}))


def test_a_method_that_sends_nothing_has_no_form_that_fits() -> None:
    forms = Forms(Forms().plain)
    with pytest.raises(Refused, match="it sent 'w', and the method sends nothing"):
        forms.check("upload", {"w": model()})


def test_forms_are_learned_and_then_kept() -> None:
    learned = Forms()
    learned.check("upload", {"w": model(), "means": torch.ones(3, 4), "some": torch.ones(2), "n": 3})
    learned.check("upload", {"w": model(1), "means": torch.ones(3, 4), "some": torch.ones(5), "more": torch.ones(1)})
    forms = Forms(json.loads(json.dumps(learned.plain)))
    forms.check("upload", {"w": model(2), "means": torch.zeros(3, 4), "some": torch.ones(9)})
    for values, reason in [
        ({"w": model(), "means": torch.ones(4, 3), "some": torch.ones(1)}, r"means is .*\[4, 3\]"),
        ({"w": model(), "means": torch.ones(3, 4).double(), "some": torch.ones(1)}, "means is .*float64"),
        ({"w": model().part("head"), "means": torch.ones(3, 4), "some": torch.ones(1)}, "w is "),
        ({"w": model(), "means": torch.ones(3, 4)}, "it did not send some"),
        ({"w": model(), "means": torch.ones(3, 4), "some": torch.ones(1), "x": 1}, "it sent 'x', and the method sends"),
        ([1], "an upload has no names"),
    ]:
        with pytest.raises(Refused, match=reason):
            forms.check("upload", values)
