"""The table and the picture of docs/cuda.md are what the model says now."""

from pathlib import Path

import pytest

from bench import roofline
from tvm_scan.schedules.cuda_chip import BANDWIDTH

PAGE = Path(__file__).parents[1] / "docs" / "cuda.md"


@pytest.fixture(scope="module")
def rows():
    return roofline.predictions()


def test_the_table_of_the_page_is_what_the_model_says(rows):
    text = PAGE.read_text()
    for line in [*roofline.table(rows), *roofline.others()]:
        assert line in text, "python -m bench.roofline prints the tables"


def test_nothing_is_above_its_roof(rows):
    """Each of the three kinds of work, and memory."""
    for name, _, cost, loop in rows:
        for one in (cost, loop):
            assert one.bytes / one.seconds <= 1.001 * BANDWIDTH, name
            for kind, (work, peak) in roofline.roofs(one).items():
                assert work / one.seconds <= 1.001 * peak, (name, kind)


def test_the_picture_has_a_panel_for_each(rows, tmp_path):
    pytest.importorskip("matplotlib")
    roofline._draw(rows, tmp_path / "roofline.svg")
    for picture in (tmp_path / "roofline.svg", roofline.PICTURE):
        made = picture.read_text()
        assert all(f"{kind} per byte of memory" in made for kind in roofline.roofs(rows[0][2]))
