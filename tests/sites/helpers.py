"""What several tests of sites need."""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import load, save

from bench.sites.messages import decode
from bench.sites.rehearsal import LocalHub
from bench.sites.server import Absent
from bench.sites.site import SiteClient

Fault = Callable[[bytes], bytes | Absent]
"""What damages a message."""


def rewritten(body: bytes, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> bytes:
    """A message with other tensors or another envelope."""
    size = struct.unpack("<Q", body[:8])[0]
    envelope = json.loads(json.loads(body[8 : 8 + size])["__metadata__"]["pfleague"])
    tensors = load(body)
    change(tensors, envelope)
    return save(tensors, {"pfleague": json.dumps(envelope)})


def upload(envelope: dict[str, Any]) -> dict[str, Any]:
    """The upload of a site's message."""
    [event] = [event for event in envelope["events"] if "sent" in event]
    upload: dict[str, Any] = event
    return upload


def edited(tensors: Mapping[str, torch.Tensor] | None = None, sent: Any = None, **envelope: Any) -> Fault:
    """A fault that gives a message these tensors, its upload the fields of `sent`, and its envelope the others."""

    def change(old: dict[str, torch.Tensor], fields: dict[str, Any]) -> None:
        old.update(tensors or {})
        if sent:
            upload(fields).update(sent)
        fields.update(envelope)

    return lambda body: rewritten(body, change)


class Faulty(LocalHub):
    """A hub some of whose answers are damaged on their way, though the site has done its work."""

    def __init__(self, sites: Mapping[int, SiteClient], fault: Fault, when: Any) -> None:
        super().__init__(sites)
        self.fault = fault
        self.when = when

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        answers = super().ask(requests)
        for i, request in requests.items():
            envelope, answer = decode(request).envelope, answers[i]
            if envelope.kind == "round" and (envelope.version, i) in self.when and isinstance(answer, bytes):
                answers[i] = self.fault(answer)
        return answers
