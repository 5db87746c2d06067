"""What the costs of CPU plans count is what LLVM's code has: instructions of its inner loops."""

import re

import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from bench.regret_cases import Case
from tvm_scan import extract, parallelize
from tvm_scan.loops import delta_walk
from tvm_scan.schedules.cpu.cost.parts import instructions_of
from tvm_scan.schedules.cpu.cost.short_rows import takes_rows_in_vectors
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.cost.vectors import block_counts
from tvm_scan.schedules.cpu.vector_loops import with_vector_loops
from tvm_scan.schedules.delta.walk_plan import decide
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

#: Whatever the machine: LLVM writes code for others, too.
TARGET = Target({"kind": "llvm", "mcpu": "skylake-avx512", "mtriple": "x86_64-unknown-linux-gnu"})
FAMILIES = ["cumsum", "linear_recurrence", "ema", "cummax", "clamped", "order 2"]
#: Instructions that move cells between lanes; blends have a port of their own.
SHUFFLE = re.compile(r"v(p?perm|p?unpck|p?shuf|p?align|p?insert|p?extract|p?broadcast|movddup)")


def inner_loops(family, plan):
    """Instructions of every loop without another one inside it, and its recurrence."""
    func = Case(family, (100, 100_000), {"layout": "dl"} if family == "ema" else {}).func
    module = tvm.compile(parallelize(func, TARGET, ScanPlan.parse(plan)), target=TARGET)
    return loops_in(module), extract(func)


def loops_in(module, inner=True):
    """Instructions of every loop; by default of those without another one inside."""
    code, labels, loops = [], {}, []
    for line in map(str.strip, module.mod.inspect_source("asm").splitlines()):
        if label := re.match(r"(\.LBB\w+):", line):
            labels[label[1]] = len(code)
        elif line and not line.startswith((".", "#")) and not line.endswith(":"):
            code.append(line.partition("#")[0])
            jump = re.match(r"j\w+\s+(\.LBB\w+)", line)
            if jump and jump[1] in labels:
                loops.append((labels[jump[1]], len(code)))
    if inner:
        loops = [a for a in loops if not any(a[0] <= b[0] and b[1] < a[1] for b in loops)]
    return [code[first:last] for first, last in loops]


def is_of_numbers(instruction):
    return instruction.startswith("v")


def is_store(instruction):
    return bool(re.match(r"vmov\w+\s+%[xyz]mm\w+,\s*[-\w]*\(", instruction))


@pytest.mark.parametrize("family", FAMILIES)
def test_instructions_of_the_loop(family):
    """Of floats, in the loop as it was written; LLVM repeats a step some times."""
    loops, recurrence = inner_loops(family, "cpu/sequential()")
    found = []
    for loop in loops:
        stores = sum(map(is_store, loop))
        if stores:
            found.append(sum(map(is_of_numbers, loop)) / stores)
    counted = instructions_of(step_of(recurrence))
    assert min(found) == pytest.approx(counted, abs=0.6), (found, counted)


@pytest.mark.parametrize("family", ["cumsum", "linear_recurrence", "cummax", "clamped"])
def test_shuffles_and_arithmetic_of_vectors_of_time(family):
    plan = "cpu/lanes(time_vector=64, time_runs=True)"
    loops, recurrence = inner_loops(family, plan)
    machine = Machine.of(TARGET)
    counted = block_counts(64, True, step_of(recurrence), machine.chip)
    found = []
    for loop in loops:
        stores = sum(map(is_store, loop))
        moved = sum(bool(SHUFFLE.match(i)) for i in loop)
        if stores == 4 and moved:  # a vector of 64 cells
            other = sum(is_of_numbers(i) and not i.startswith(("vmov", "vbroad")) for i in loop)
            found.append((other - moved, moved))
    arithmetic, moved = min(found)
    assert 0.6 < counted.operations / arithmetic < 1.7, (found, counted)
    assert 0.6 < counted.shuffles / moved < 1.7, (found, counted)


@pytest.mark.parametrize("vectors", ["time_vector=32", "time_vector=64, time_runs=True"])
def test_vectors_of_time_ask_for_no_first_steps(vectors):
    """Gates that are numbers, but at the first two steps, are multiplied before the loop."""
    loops, _ = inner_loops("order 2", f"cpu/lanes({vectors})")
    scans = [loop for loop in loops if any(SHUFFLE.match(i) for i in loop)]
    assert scans
    assert not [i for loop in scans for i in loop if re.match(r"vp?cmp", i)]


@pytest.mark.parametrize("mcpu", ["znver3", "sapphirerapids"])
def test_sums_over_a_state_stay_in_registers(mcpu):
    """Of 16 registers, or 32: one that is in memory waits for its store at every row."""
    triple = "x86_64-unknown-linux-gnu"
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": triple, "num-cores": 2})
    # The kernel of `tvm_scan.torch.gated_delta_rule`, as it is decided for the machine.
    options = {"keys": 128, "values": 128, "dtype": "float32", "rule": "delta", "gate": "head"}
    options |= {"group": 2}
    options |= decide(options, {"batch": 1, "heads": 16, "length": 512}, target)
    walk = delta_walk(
        *(tirx.Var(name, "int64") for name in ("batch", "heads", "length")), **options
    )
    walk = with_vector_loops(walk, target).with_attr("global_symbol", "main")
    passes = 0
    for loop in loops_in(tvm.compile(walk, target=target)):
        added = sum("vfmadd" in line for line in loop)
        shared = sum("vbroadcast" in line or "1to" in line for line in loop)
        if added >= 16 and shared >= 4:
            passes += 1
            # The store of one among 32 is hidden behind the others.
            assert sum(is_store(line) and "(%rsp" in line for line in loop) <= added // 32
    assert passes >= 2, "none of the passes over a state was found"


@pytest.mark.parametrize("width", [8, 32])
def test_a_block_of_integers_waits_for_no_carry(width):
    """Its addresses do not: LLVM packs a scalar carry of 8 bytes with the number of the block."""
    func = Case("cumsum", (1, 10_000), {"dtype": "int64"}).func
    plan = ScanPlan.parse(f"cpu/lanes(time_vector={width}, time_runs={width == 32})")
    loops = loops_in(tvm.compile(parallelize(func, TARGET, plan), target=TARGET))
    blocks = [loop for loop in loops if any("zmm" in line for line in loop)]
    assert blocks
    for line in (line for loop in blocks for line in loop):
        assert not re.match(r"v(pinsr|pextr)|vmovq\s+%xmm\d+, %r", line), line


@pytest.mark.parametrize("mcpu", ["skylake-avx512", "znver4"])
@pytest.mark.parametrize(
    "plan", ["lanes()", "lanes(lane_block=4)", "lanes(time_vector=16)", "lanes(time_vector=32)"]
)
@pytest.mark.parametrize(("family", "sizes"), [("cumsum", (64, 26)), ("cummax", (100, 17))])
def test_rows_that_lie_apart_are_gathered_in_no_vector(family, sizes, plan, mcpu):
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-unknown-linux-gnu"})
    func = Case(family, sizes, {"dtype": "int32"}).func
    scheduled = parallelize(func, target, ScanPlan.parse(f"cpu/{plan}"))
    code = tvm.compile(scheduled, target=target).mod.inspect_source("asm")
    assert not re.search(r"v\w*(gather|scatter)", code)


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "znver4"])
@pytest.mark.parametrize(
    ("family", "options"), [("cumsum", {"dtype": "int32"}), ("affine integers", {})]
)
def test_a_carry_of_32_bits_is_in_a_register_of_32(family, options, mcpu):
    """Widened and narrowed at every step it took twice the time of the loop's."""
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-unknown-linux-gnu"})
    func = Case(family, (12, 2431), options).func
    scheduled = parallelize(func, target, ScanPlan.parse("cpu/lanes()"))
    scans = [
        loop
        for loop in loops_in(tvm.compile(scheduled, target=target))
        if any(re.match(r"(add|mov)l\b.*\(", line) for line in loop)
    ]
    assert scans
    assert not [
        line for loop in scans for line in loop if line.startswith(("movsl", "cltq", "shl"))
    ]


@pytest.mark.parametrize("block", [2, 4, 8])
@pytest.mark.parametrize(
    ("family", "sizes", "options"),
    [
        ("linear_recurrence", (401, 22), {"layout": "bdl", "batch": 1}),
        ("cummax", (401, 11), {"reverse": True}),
        ("cumsum", (401, 16), {}),
    ],
    ids=str,
)
def test_chains_of_several_lanes_are_no_vector(family, sizes, options, block):
    """LLVM would gather the same steps of neighbouring chains, and take the results apart again."""
    func = Case(family, sizes, options).func
    plan = ScanPlan.parse(f"cpu/lanes(lane_block={block})")
    code = tvm.compile(parallelize(func, TARGET, plan), target=TARGET).mod.inspect_source("asm")
    assert re.search(r"v(f\w*|add|max)s[sd]\b", code)
    assert not re.search(r"v(fn?m\w+|mul|add|max)p[sd]\b", code)


@pytest.mark.parametrize(
    ("family", "sizes", "options", "plan"),
    [
        ("cumsum", (100, 56), {}, "lanes(time_vector=16"),
        ("cumsum", (64, 100), {}, "lanes(lane_block=32, vectorize=True, transpose=True"),
        ("cumsum", (100, 72), {"axis": 0}, "lanes(lane_block=32, vectorize=True"),
        ("cumsum", (1, 6400), {}, "lanes(time_vector=16"),
        ("cumsum", (4, 6400), {}, "three_phase(chunks=2, time_vector=16"),
    ],
    ids=str,
)
def test_a_thread_fences_its_line_stores_once(family, sizes, options, plan):
    """A fence waits for memory, which takes as long as a row of a thousand steps."""
    func = Case(family, sizes, options).func
    scheduled = parallelize(func, TARGET, ScanPlan.parse(f"cpu/{plan}, nontemporal=True)"))
    module = tvm.compile(scheduled, target=TARGET)
    code = module.mod.inspect_source("asm")
    assert "vmovnt" in code and "sfence" in code
    assert not any(line.startswith("sfence") for loop in loops_in(module, False) for line in loop)


def tile_loop(lanes, dtype="float32", rest=""):
    """The longest inner loop of tiles of so many lanes, and all of the code."""
    func = Case("cumsum", (3 * lanes, 144), {"dtype": dtype}).func
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True, transpose=True{rest})"
    module = tvm.compile(parallelize(func, TARGET, ScanPlan.parse(plan)), target=TARGET)
    return max(loops_in(module), key=len), module.mod.inspect_source("asm")


@pytest.mark.parametrize("rest", ["", ", prefetch=1"])
@pytest.mark.parametrize(("dtype", "rows"), [("float32", 16), ("float64", 16), ("int64", 16)])
def test_a_tile_of_a_vector_of_lanes_is_in_registers(dtype, rows, rest):
    """What lies in TVM's pool LLVM has to store, whether anybody reads it or not."""
    loop, code = tile_loop(16, dtype, rest)
    assert sum(is_store(line) and "%rsp" not in line for line in loop) == rows
    assert not re.search(r"call.*AllocWorkspace", code)


@pytest.mark.parametrize("lanes", [16, 32])
def test_vectors_on_the_stack_cross_no_lines(lanes):
    """Those that registers cannot hold; before, that was so in every second process."""
    loop, code = tile_loop(lanes)
    spilled = [line for line in loop if "%rsp" in line and "zmm" in line]
    assert "andq\t$-64, %rsp" in code
    assert all(int(re.search(r"(-?\d*)\(%rsp", line)[1] or 0) % 64 == 0 for line in spilled)


@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_no_cell_is_taken_out_of_a_row_of_a_tile(lanes):
    """As LLVM does with a part of a longer vector that was stored."""
    loop, _ = tile_loop(lanes)
    assert not [line for line in loop if re.match(r"vpextr|vpinsr|vinsertps|vmovd", line)]


@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_steps_beside_tiles_take_no_addresses_out_of_vectors(lanes):
    """Of rows of 14 steps, in the other vectors of a block as in its first one."""
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True, transpose=True)"
    scheduled = parallelize(Case("clamped", (8 * lanes, 14)).func, TARGET, ScanPlan.parse(plan))
    code = tvm.compile(scheduled, target=TARGET).mod.inspect_source("asm")
    assert "vminps" in code and "vpextrq" not in code


@pytest.mark.parametrize("rows", [3, 40, 64])
def test_a_choice_by_time_alone_leaves_vectors_of_lanes(rows):
    """Whatever number of blocks there are, by which a task finds its lanes."""
    func = Case("logsumexp", (rows * 16, 5), {}).func
    plan = ScanPlan.parse("cpu/lanes(lane_block=16, vectorize=True)")
    text = parallelize(func, TARGET, plan).script()
    assert "T.vectorized(16)" in text and "if_then_else" not in text


def test_a_maximum_of_integers_is_compared_first_in_scalar_code():
    for dtype, extremes in (("int32", 1), ("int64", 1), ("float32", 0)):
        step = step_of(extract(Case("cummax", (4, 1000), {"dtype": dtype}).func))
        assert step.body.extremes == extremes
        assert step.body.operations == 1


@pytest.mark.parametrize(
    ("length", "options", "loop", "lanes"),
    [
        (12, {"layout": "ld"}, True, True),
        (28, {"layout": "ld"}, False, True),
        (12, {"layout": "bld", "batch": 2}, True, False),
        (5, {"layout": "dl", "reverse": True}, True, False),
        (12, {"layout": "dl"}, False, False),
    ],
    ids=str,
)
def test_which_short_rows_are_taken_in_vectors(length, options, loop, lanes):
    func = Case("linear_recurrence", (236, length), options).func
    step = step_of(extract(func))
    for plan, taken in (("sequential", loop), ("lanes", lanes)):
        scheduled = parallelize(func, TARGET, ScanPlan.parse(f"cpu/{plan}()"))
        code = tvm.compile(scheduled, target=TARGET).mod.inspect_source("asm")
        packed = len(re.findall(r"v(fmadd\d+|mul|add)ps\s", code)) >= length
        gathered = re.search(r"v\w*(gather|scatter)", code)
        assert takes_rows_in_vectors(step, plan == "sequential") == taken
        assert (packed and not gathered) == taken


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_vectors_that_move_are_no_shuffles(dtype):
    """Of a vector of 32 steps, which LLVM repeats some times."""
    func = Case("cumsum", (1, 100_000), {"dtype": dtype}).func
    plan = ScanPlan.parse("cpu/lanes(time_vector=32)")
    loops = loops_in(tvm.compile(parallelize(func, TARGET, plan), target=TARGET))
    loop = max(loops, key=lambda code: sum("mm" in line for line in code))
    repeated = sum(map(is_store, loop)) * 64 / (32 * int(dtype[-2:]) / 8)
    shuffles = sum(bool(SHUFFLE.match(line)) for line in loop) / repeated
    counted = block_counts(32, False, step_of(extract(func)), Machine.of(TARGET).chip).shuffles
    assert shuffles == pytest.approx(counted, rel=0.3)
