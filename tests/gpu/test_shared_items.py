"""Tiles through shared memory: the results, the banks that are hit, barriers, what nvcc makes."""

import re
from dataclasses import replace

import pytest
from tvm.target import Target

from tests.gpu.shared_memory import check_banks, conflicts
from tests.programs.family_programs import PROGRAMS
from tests.programs.half_recurrences import FUNCTIONS
from tests.programs.test_extraction import sequential
from tests.programs.test_families import arguments, check
from tests.support.cuda_harness import (
    CUDA_TARGET,
    emit_cuda,
    run_cuda,
    run_exactly,
)
from tests.support.cusim import nvcc
from tests.support.plans import in_schedule
from tests.support.recurrence_cases import Case
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.gpu.shared.layout import PaddedLayout, lenders_of, streams_of
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess
from tvm_scan.schedules.machine.machine import Machine

TILES = ScanPlan.parse(
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=8, block_tree=warp, "
    "vector_loads=True, block_load=transposed)"
)
STATES = (("initial_state", True), ("final_state", True))


# ---- banks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_no_two_threads_meet_in_a_bank(size):
    """For any number of items: by items inside, by vectors of any width outside."""
    for items in range(1, 65):
        layout = PaddedLayout(items, size)
        if not layout.fits:
            continue
        unit = layout.unit
        for warp in (0, 32, 96):
            for k in range(0, items, unit):
                places = [layout.index((warp + t) * items + k) * size for t in range(32)]
                assert conflicts(places, unit * size) == 1, (items, k)
                # A unit lies in one piece, aligned to itself.
                assert all(place % (unit * size) == 0 for place in places)
            for lanes in (1, 2, 4, 8, 16):
                # Of the widths that a tile of 32 threads is a multiple of.
                if lanes * size <= 16 and not 32 * items % lanes:
                    places = [layout.index((warp + t) * lanes) * size for t in range(32)]
                    assert conflicts(places, lanes * size) == 1, (items, lanes)


def test_without_the_padding_they_would_meet():
    assert PaddedLayout(8, 4).period == 32
    assert conflicts([t * 8 * 4 for t in range(32)], 16) == 2
    assert PaddedLayout(4, 4).period == PaddedLayout(3, 4).period == 0
    # Of 16 and 64 items a padding follows every 4, or every 16, vectors of all of a thread.
    assert [PaddedLayout(i, 4).period for i in (16, 32, 64)] == [32, 32, 64]


def test_results_lie_where_an_input_was():
    streams = streams_of(TILES, extract(library.linear_recurrence(3, 1 << 10)))
    gates, values, results = streams
    assert lenders_of(streams) == {results: gates}
    # Of another size, or copied in another order, cells are not those of the same steps.
    smaller = replace(gates, layout=PaddedLayout(8, 2))
    backwards = replace(values, copies=VectorAccess(4, False))
    assert lenders_of((smaller, backwards, results)) == {}
    # An input has one tile to lend.
    assert lenders_of((gates, results, replace(results))) == {results: gates}


@pytest.mark.parametrize(
    "change",
    [{}, {"stages": 3}, {"items_per_thread": 6}, {"items_per_thread": 3, "vector_loads": False}],
    ids=str,
)
def test_the_kernel_hits_every_bank_once(change):
    plan = TILES.with_(**change)
    func = library.linear_recurrence(3, 1 << 14)
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    check_banks(source, least=4)


# ---- results ------------------------------------------------------------------------------------


def affine(*flags):
    options = (*((flag, True) for flag in flags), *STATES)
    return Case("linear_recurrence", options=options, sizes=(("lanes", 3),))


FORWARD, REVERSE = affine(), affine("reverse", "exclusive")
RESULTS = {
    "one buffer": (FORWARD, TILES.with_(threads_per_block=64), (1000,)),
    "reverse, exclusive": (REVERSE, TILES, (1000,)),
    "two buffers, reverse": (REVERSE, TILES.with_(threads_per_block=64, stages=2), (1100,)),
    "three buffers": (FORWARD, TILES.with_(items_per_thread=4, stages=3), (1100,)),
    "Blelloch": (FORWARD, TILES.with_(block_tree="blelloch", threads_per_block=16), (300,)),
    "phases": (
        REVERSE,
        in_schedule(TILES, "three_phase", block_tree="kogge_stone", items_per_thread=6),
        (400,),
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_exact(name):
    """An operator that does not commute, complete and incomplete tiles."""
    run_exactly(*RESULTS[name])


def test_symbolic_lengths():
    """Scalar copies, none of them beyond the end; tiles fewer than buffers."""
    plan = TILES.with_(items_per_thread=3, stages=3)
    run_exactly(FORWARD, plan, (0, 1, 33, 97, 500), symbolic=True)


@pytest.mark.parametrize("name", ["reset_max", "rolling_hash", "running_argmax"])
def test_families(name):
    """Flags of one byte, 64 bits, two outputs; several elements in a word."""
    func, args = PROGRAMS[name][0], arguments(name)
    plan = TILES.with_(items_per_thread=4, stages=2)
    check(name, run_cuda(parallelize(func, CUDA_TARGET, plan), args), sequential(func, args))


def test_a_state_of_many_cells():
    """The sequences that its steps read once are staged; what its states read is not."""
    case = Case(
        "selective_scan", options=STATES, sizes=(("channels", 2), ("batch", 1), ("states", 2))
    )
    run_exactly(case, TILES.with_(items_per_thread=4, stages=2), (160,))


# ---- what the compiler sees ----------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_compiler_moves_128_bits(kind, stages):
    """Of two inputs and an output, two vectors of a thread each, and nothing narrower."""
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: the widths of loads and stores are not checked")
    half = kind != "float32"
    func = FUNCTIONS["history"](3, 1024, kind) if half else library.linear_recurrence(3, 1024)
    plan = TILES.with_(stages=stages, items_per_thread=16 if half else 8)
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    ptx = nvcc.compile_ptx(source)
    loads = 4
    found = re.findall(r"\b(ld|st)\.(global|shared)(?:\.nc)?(\.v\d)?\.\w+", ptx)
    expected = {("st", "global", ".v4"): loads // 2, ("ld", "shared", ".v4"): loads + loads // 2}
    expected["st", "shared", ".v4"] = loads // 2 + (loads if stages == 1 else 0)
    if stages == 1:
        expected["ld", "global", ".v4"] = loads
    assert {access: found.count(access) for access in found} == expected
    # Each one is written twice: before the tiles, and for the tile after this one.
    copies = re.findall(r"cp\.async\.cg\.shared\.global \[%\w+\], \[%\w+\], 16", ptx)
    assert len(copies) == (2 * loads if stages == 2 else 0)


@pytest.mark.parametrize(("stages", "warps", "count"), [(1, 1, 2), (2, 1, 2), (2, 4, 3), (3, 4, 3)])
def test_barriers(stages, warps, count):
    """However many buffers: one for a tile's inputs, the warps' totals, and its outputs."""
    plan = TILES.with_(stages=stages, threads_per_block=32 * warps)
    func = library.linear_recurrence(4, 1 << 16)
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    assert source.partition("for (int tile")[2].count("__syncthreads()") == count


# ---- plans --------------------------------------------------------------------------------------

WRONG = {
    "cuda/lanes(threads_per_block=64, block_load=transposed)": (
        "states are independent but for sums over them, got .* use block_load=direct"
    ),
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=4, block_load=rotated)": (
        "one of direct, transposed, got block_load=rotated"
    ),
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=4, stages=2)": (
        "block_load=transposed for several buffers"
    ),
    "cuda/three_phase(threads_per_block=64, items_per_thread=4, block_load=transposed, stages=2)": (
        "expected one of .*, got the field 'stages'"
    ),
    "cuda/serial_tiles(threads_per_block=8, items_per_thread=4, block_load=transposed, stages=4)": (
        "1 to 3 buffers of a tile, got stages=4"
    ),
    "cuda/serial_tiles(threads_per_block=1024, items_per_thread=16, block_load=transposed)": (
        "at most 49152 bytes of shared memory, got 1[5-9]"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_plans_that_do_not_fit(text):
    with pytest.raises(PlanError, match=WRONG[text]):
        ScanPlan.parse(text).check(CUDA_TARGET, extract(library.linear_recurrence(4, 1000)))


def test_old_devices_have_one_buffer():
    old = Target({"kind": "cuda", "arch": "sm_75"}, host={"kind": "llvm"})
    assert not Machine.of(old).async_copies
    found = extract(library.linear_recurrence(4, 1000))
    TILES.check(old, found)
    with pytest.raises(PlanError, match="a target of sm_80 or later for several buffers"):
        TILES.with_(stages=2).check(old, found)


def test_arrays_that_do_not_run_along_time_stay_direct():
    found = extract(library.cumsum(64, 64, axis=0))
    assert not streams_of(TILES, found)
    with pytest.raises(PlanError, match="an array whose memory runs along time"):
        TILES.check(CUDA_TARGET, found)
