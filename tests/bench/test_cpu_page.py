"""What the page of the CPU says of times, and what it does not say."""

import pytest

pytest.importorskip("tabulate")

from bench.cpu_loops import KINDS
from bench.cpu_page import page, ratio, table, uneven
from bench.floors import FLOORS, least_floor


def row(kind="affine", shape=(64, 65536), spread=0.01, **seconds):
    seconds = {name.replace("_", " "): s for name, s in seconds.items()}
    seconds["tvm_scan"] = seconds.pop("ours", 1.0)
    return {
        "workload": {"kind": kind, "shape": shape},
        "plan": "cpu/lanes()",
        "seconds": seconds,
        "spread": dict.fromkeys(seconds, spread),
        "peak bytes": {},
        "wrong": [],
        "GB/s": 1.0,
    }


def test_no_ratio_of_unsteady_times():
    steady = row(C=3.0, numba=4.0)
    assert ratio(steady, {}) == 3.0
    for name in ("C", "tvm_scan"):
        wild = row(C=3.0, numba=4.0)
        wild["spread"][name] = 0.31
        # Nor that of the next one, which is slower.
        assert ratio(wild, {}) is None
    other = row(C=3.0, numba=4.0)
    other["spread"]["numba"] = 1.07
    assert ratio(other, {}) == 3.0
    assert "107%" in page({"date": "now"}, [other], [])
    assert ratio(row(), {}) is None, "no peer at all"


def test_a_peer_that_is_out_of_proportion_is_no_measure():
    """The C of the selective scans took 0.16 ns a state and step in two rows, 0.4 in six."""
    shapes = [(1, 1536, 512), (1, 1536, 2048), (2, 1536, 2048)]
    good, slow, fine = (
        row("selective scan", s, C=s[0] * s[2] * 1e-5, numba=s[0] * s[2] * 1e-3) for s in shapes
    )
    assert uneven([good, slow, fine]) == [{}, {}, {}]
    slow["seconds"]["C"] *= 2.4
    odd = uneven([good, slow, fine])
    assert odd[0] == odd[2] == {}
    assert odd[1] == {"C": pytest.approx(2048e-5)}
    assert ratio(slow, odd[1]) is None
    # A peer that is beaten either way hides nothing.
    slow["seconds"]["numba"] = 1e-3
    assert ratio(slow, odd[1]) == 1e-3
    text = page({"date": "now"}, [good, slow, fine], [])
    assert "out of proportion to other rows: C (as elsewhere: 20.5)" in text


def test_rows_of_one_lane_and_small_ones_are_not_compared_with_others():
    alone, many = row(shape=(1, 1 << 22), C=2.0), row(shape=(64, 65536), C=1.0)
    small = row(shape=(64, 64), C=1.0)
    assert uneven([alone, many, small]) == [{}, {}, {}]


def test_the_floor_is_the_lower_one_or_none():
    assert least_floor(dict(zip(FLOORS, (3.0, 2.0), strict=True)), 4.0) == 2.0
    assert least_floor(dict(zip(FLOORS, (3.0, 4.5), strict=True)), 4.0) == 3.0
    assert least_floor(dict(zip(FLOORS, (3.0, 2.0), strict=True)), 1.9) is None
    assert least_floor({}, 1.0) is None
    faster = row(C=3.0, floor=2.0)
    cells = [cell.strip() for cell in table([faster]).splitlines()[-1].split("|")]
    head = [cell.strip() for cell in table([faster]).splitlines()[0].split("|")]
    assert cells[head.index("floor ms")] == cells[head.index("of the floor")] == ""


def test_every_kind_has_its_loops():
    cpu_tools = pytest.importorskip("bench.cpu_tools")
    shapes = {"affine middle": (2, 40, 600), "cumsum rows": (600, 40)}
    shapes |= {k: (1, 32, 32) for k in KINDS if k.startswith("selective")}
    for kind in KINDS:
        for tool in ("tvm", "numpy", "scipy", "C", "numba"):
            calls, facts = cpu_tools.prepare(tool, kind, shapes.get(kind, (3, 4096)), False)
            assert facts["wrong"] == [], f"{tool}, {kind}"
            if tool == "tvm":
                assert {"tvm loop", "tvm_scan"} <= calls.keys()
    for kind in ("cumsum rows", "affine middle"):
        calls, _ = cpu_tools.prepare("C", kind, shapes[kind], False)
        assert calls.keys() == {"C -O3"}, "expected gcc"
