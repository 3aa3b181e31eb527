"""How clients relate: the means by hand, and the pictures of what cells left."""

import json

import numpy as np
import pytest

from reports.page import client_relations
from reports.page.client_relations import relations, weight_of_others
from reports.page.page import write_report
from reports.reading.load import load
from tests.reports.conftest import cell_id

MATRIX = [[9.0, 1.0, 2.0], [3.0, 9.0, 4.0], [5.0, 7.0, 9.0]]


@pytest.fixture
def related(store_writer, tmp_path):
    """A run in which one method of two left matrices; in its first task, clients have equally many samples."""
    run = store_writer(tmp_path, seeds=1, methods=("fedavg", "scd"))
    for alpha, sizes in (("1", [6, 6, 6]), ("0.1", [6, 3, 9])):
        content = {"clients": [0, 2, 5], "n_train": sizes, "matrices": {"coefficients": MATRIX, "similarity": MATRIX}}
        (run / cell_id(f"scd-{alpha}-0") / "relations.json").write_text(json.dumps(content))
    return run


def test_what_all_others_make_of_a_client():
    assert weight_of_others(np.array(MATRIX)).tolist() == [4, 4, 3]
    assert weight_of_others(np.array([[2.0]])).tolist() == [0]


@pytest.mark.long
def test_pictures_of_the_method_that_has_matrices(related):
    section = relations(load([related]))
    assert [picture.name for picture in section.pictures] == ["relations_1", "relations_1_means"]
    heat_maps, means = (picture.svg.decode() for picture in section.pictures)
    assert heat_maps.count("<image") == 2 * 2 + 4  # a matrix and its colour bar each
    assert "training samples of a client" in means
    assert section.pictures[0].png.startswith(b"\x89PNG")


@pytest.mark.long
def test_nine_matrices_have_nine_looks(related, monkeypatch):
    """SPFL's are layer by layer: more than there are colours, and in three lines on a page, five on a phone, where
    their colour bars left the panels no room."""
    drawn = []
    monkeypatch.setattr(client_relations, "legend", lambda canvas, styles: drawn.append(styles))
    path = related / cell_id("scd-1-0") / "relations.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"matrices": {f"layer {k}": MATRIX for k in range(9)}}))
    (related / cell_id("scd-0.1-0") / "relations.json").unlink()
    means = relations(load([related])).pictures[1].svg.decode()
    assert "training samples of a client" not in means, "with equal sizes matrices stand side by side"
    assert len({(style["color"], style["marker"]) for style in drawn[0].values()}) == len(drawn[0]) == 9


@pytest.mark.slow
def test_the_page_has_the_part(related):
    assert "scd: how clients relate" in write_report([related]).read_text()
