"""The table and the picture of docs/cuda/model.md are what the model says now."""

import pytest

from bench import roofline
from tests import ROOT
from tvm_scan import default_plan, extract, library
from tvm_scan.schedules.machine.gpu_chip import H200
from tvm_scan.schedules.machine.machine import Machine

PAGE = ROOT / "docs" / "cuda" / "model.md"


@pytest.fixture(scope="module")
def rows():
    return roofline.predictions()


def test_the_table_of_the_page_is_what_the_model_says(rows):
    text = PAGE.read_text()
    for line in [*roofline.table(rows), *roofline.others()]:
        assert line in text, "python -m bench.roofline prints the tables"


@pytest.mark.parametrize(("rows", "most"), [(1, 1.7), (64, 1.6)])
def test_few_rows_of_unknown_length_have_a_plan_for_long_ones_too(rows, most):
    """One block for a row of 2^22 steps takes a hundred times what many blocks take."""
    target = roofline._TARGET
    chosen = default_plan(target, extract(library.linear_recurrence(rows, None)))
    for length in (257, 4097, 65537, (1 << 22) + 1):
        found = extract(library.linear_recurrence(rows, length))
        best = default_plan(target, found)
        ours, theirs = (p.cost(found, Machine.of(target)).seconds for p in (chosen, best))
        assert ours <= most * theirs, (length, str(chosen), str(best))


def test_nothing_is_above_its_roof(rows):
    """Each of the three kinds of work, and memory."""
    for name, _, cost, loop in rows:
        for one in (cost, loop):
            assert one.bytes / one.seconds <= 1.001 * H200.bandwidth, name
            for kind, (work, peak) in roofline.roofs(one).items():
                assert work / one.seconds <= 1.001 * peak, (name, kind)


def test_the_picture_has_a_panel_for_each(rows, tmp_path):
    pytest.importorskip("matplotlib")
    roofline._draw(rows, tmp_path / "roofline.svg")
    for picture in (tmp_path / "roofline.svg", roofline.PICTURE):
        made = picture.read_text()
        assert all(f"{kind} per byte of memory" in made for kind in roofline.roofs(rows[0][2]))
