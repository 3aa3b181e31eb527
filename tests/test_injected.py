"""The list of faults to inject is of the code as it is, and has two for every room."""

from collections import Counter

import pytest

from tests.conftest import ROOT
from tests.injected import FAULTS, Fault
from tests.rooms import FLOORS, PACKAGES


def test_every_room_has_two() -> None:
    counts = Counter(fault.room for fault in FAULTS)
    assert {room: counts[room] for room in [*FLOORS, *PACKAGES] if counts[room] < 2} == {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_its_text_stands_once_in_its_file_and_its_tests_are_there(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.old != fault.new
    file, _, name = fault.tests.partition("::")
    assert f"def {name}" in (ROOT / "tests" / file).read_text(encoding="utf-8")
