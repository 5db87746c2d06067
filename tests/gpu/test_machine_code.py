"""Loops and ways through machine code, and what ``bench.machine_code`` makes of them."""

from collections import Counter

import pytest

from bench import machine_code
from bench.machine_code import counted, occupancy
from bench.machine_code_cases import CASES, Part, default_of, parts_of
from bench.sass import Instruction, Kernel, Pass, kernels, pipe_of
from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tests.support.cusim import nvcc
from tests.support.cusim.nvcc import Resources
from tvm_scan import parallelize
from tvm_scan.schedules.gpu.walk.counts import walk_counts

#: Two loops, one in the other; in the inner one a short way that moves nothing, a division's slow
#: path, and a way of a cut tile with the same bytes and one instruction more.
LISTING = """
.text.two_loops:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_2:
        /*0020*/              @P0  BRA `(.L_x_5) ;
        /*0030*/              @!P1 BRA `(.L_x_3) ;
        /*0040*/                   LDS.64 R8, [R1] ;
        /*0050*/                   FFMA R9, R8, R4, R9 ;
        /*0060*/                   BRA `(.L_x_5) ;
.L_x_3:
        /*0070*/                   LDS R8, [R1] ;
        /*0080*/                   ISETP.NE.AND P2, PT, R8, RZ, PT ;
        /*0090*/                   LDS R9, [R1+0x4] ;
.L_x_5:
        /*00a0*/                   FADD R9, R9, R8 ;
        /*00b0*/              @P3  BRA `(.L_x_2) ;
        /*00c0*/                   STG.E desc[UR4][R2.64], R9 ;
        /*00d0*/              @P4  BRA `(.L_x_1) ;
        /*00e0*/                   EXIT ;
.L_x_9:
        /*00f0*/                   BRA `(.L_x_9);
"""


def two_loops() -> Kernel:
    (kernel,) = kernels(LISTING)
    return kernel


def test_loops_are_found_by_dominators():
    whole, outer, inner = two_loops().depth()
    assert inner.blocks < outer.blocks < whole.blocks
    # The loop behind the end is where the program waits for its instructions: nobody gets there.
    assert len(whole.inner) == 1


def test_a_pass_takes_the_way_that_moves_most_and_computes_least():
    kernel = two_loops()
    whole, outer, inner = kernel.depth()
    assert kernel.executed(inner, [1]).by_pipe() == {"control": 4, "shared": 1, "fma": 2}
    once = kernel.executed(outer, [1])
    assert once.opcodes["LDS.64"] == 1 and once.bytes == 16 + 8 + 4
    # Eight passes of the inner loop for one of the outer one.
    assert kernel.executed(outer, [8, 1]).opcodes["FFMA"] == 8
    assert kernel.executed(outer, [8, 1]).instructions == 8 * 7 + 3
    assert kernel.executed(whole, [8, 8, 1]).instructions == 8 * 7 + 3 + 2


#: Two ways of a step, one with an exponential; a sum that some threads skip; a shuffle's slow way,
#: where its threads do not meet.
TWO_WAYS = """
.text.two_ways:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDS R8, [R1] ;
        /*0020*/                   BRA.DIV UR4, `(.L_x_4) ;
        /*0030*/                   SHFL.BFLY PT, R9, R8, 0x1, 0x1f ;
.L_x_2:
        /*0040*/              @P2  BRA `(.L_x_6) ;
        /*0050*/                   FADD R9, R9, R9 ;
.L_x_6:
        /*0060*/                   BRA.U UP0, `(.L_x_3) ;
        /*0070*/                   MUFU.EX2 R9, R9 ;
        /*0080*/                   BRA `(.L_x_7) ;
.L_x_3:
        /*0090*/                   FMUL R9, R9, R5 ;
.L_x_7:
        /*00a0*/                   FFMA R9, R8, R4, R9 ;
        /*00b0*/              @P3  BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_4:
        /*00d0*/                   MOV R7, R8 ;
        /*00e0*/                   WARPSYNC.COLLECTIVE R12, `(.L_x_5) ;
.L_x_5:
        /*00f0*/                   SHFL.BFLY P1, R9, R7, R8, R10 ;
        /*0100*/                   BRA `(.L_x_2) ;
"""


def test_a_loop_may_compute_a_step_in_two_ways():
    (kernel,) = kernels(TWO_WAYS)
    _, loop = kernel.depth()
    most, fewest = (kernel.executed(loop, [1], few_special=few) for few in (False, True))
    assert (most.instructions, fewest.instructions) == (10, 9)
    assert most.opcodes - fewest.opcodes == {"MUFU.EX2": 1, "BRA": 1}
    assert fewest.opcodes["SHFL.BFLY"] == 1 and "MOV" not in most.opcodes
    # Some thread executes what others skip.
    assert fewest.opcodes["FADD"] == 1 and fewest.opcodes["FMUL"] == 1


#: A loop whose threads vote, and one in which each decides for itself, as nvdisasm -hex prints it.
VOTED = """
.text.voted:
        /*0000*/                   S2R R0, SR_TID.X ;          /* 0x0000000000007919 */
                                                               /* 0x000e220000002100 */
.L_x_1:
        /*0010*/                   LDG.E R8, desc[UR4][R2.64] ; /* 0x0000000000007919 */
                                                               /* 0x000ea2000c1e1900 */
        /*0020*/                   FSETP.NAN.AND P0, PT, R8, R8, PT ; /* 0x0000000000007919 */
                                                               /* 0x004fda0003f08000 */
        /*0030*/                   {vote} P0, !P0 ;          /* 0x0000000000007919 */
                                                               /* 0x000fc80000000000 */
        /*0040*/              @P0  BRA `(.L_x_2) ;             /* 0x0000000000007919 */
                                                               /* 0x000fea0003800000 */
        /*0050*/                   FADD R8, R8, R9 ;           /* 0x0000000000007919 */
                                                               /* 0x000fc80000000000 */
.L_x_2:
        /*0060*/              @P3  BRA `(.L_x_1) ;             /* 0x0000000000007919 */
                                                               /* 0x000fea000383ffff */
        /*0070*/                   EXIT ;                      /* 0x0000000000007919 */
                                                               /* 0x000fea0003800000 */
"""


@pytest.mark.parametrize(("opcode", "skipped"), [("VOTE.ALL", 1), ("PLOP3.LUT", 0)])
def test_a_warp_skips_what_it_votes_to_skip(opcode, skipped):
    (kernel,) = kernels(VOTED.replace("{vote}", opcode))
    _, loop = kernel.depth()
    once = kernel.executed(loop, [1])
    assert once.instructions == 6 - skipped and once.opcodes["FADD"] == 1 - skipped
    # Bits 41 to 44 of the second half.
    assert once.cycles == 1 + 13 + 4 + 5 + 5 + 4 * (1 - skipped)


@pytest.mark.parametrize(
    ("opcode", "pipe", "width", "accesses"),
    [
        ("FFMA.FTZ", "fma", 0, 0),
        ("FFMA2", "fma", 0, 0),
        ("MUFU.EX2", "special", 0, 0),
        ("LDGSTS.E.BYPASS.128", "global", 16, 1),
        ("LDS.U16", "shared", 2, 1),
        ("STG.E", "global", 4, 1),
        ("LDG.E.U16.CONSTANT", "global", 2, 1),
        ("LDS.128", "shared", 16, 1),
        ("STS.128", "shared", 16, 1),
        ("LDGDEPBAR", "global", 0, 0),
        ("RED.E.ADD", "global", 0, 1),
        ("UIADD3", "uniform", 0, 0),
        ("SHFL.BFLY", "shuffle", 0, 1),
        ("IADD3", "alu", 0, 0),
        ("BAR.SYNC.DEFER_BLOCKING", "control", 0, 0),
        ("HGMMA.64x64x16.F32", "matrix", 0, 0),
    ],
)
def test_pipes_widths_and_accesses(opcode, pipe, width, accesses):
    instruction = Instruction(opcode, False, None)
    assert (pipe_of(instruction), instruction.bytes) == (pipe, width)
    assert Pass(1, Counter([opcode])).accesses == accesses


def test_occupancy_is_what_fits():
    assert occupancy(Resources(32, 0, 0, 0, 0, 1), 256) == 1
    assert occupancy(Resources(33, 0, 0, 0, 0, 1), 256) == 6 * 256 / 2048  # 40 registers each
    assert occupancy(Resources(32, 0, 0, 48 << 10, 0, 1), 128) == 4 * 128 / 2048


#: Case -> instructions for a step, channel and state, special functions for a step and channel,
#: where exponents lie in equal steps and where they do not, and threads of a lane.
COUNTS = {
    "selective 8 x 2048 x 2048 x 16": ((7.0, 6 + 1), (7.7, 18 + 1), 2),
    "selective 64 x 2048 x 2048 x 16": ((7.0, 6 + 1), (7.7, 18 + 1), 2),
}


@pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="nvdisasm is missing: no SASS to read")
@pytest.mark.parametrize("name", COUNTS)
def test_instructions_of_a_selective_scan(name):
    """An exponential for each state, or two for each thread; a barrier for 32 steps."""
    *ways, shared = COUNTS[name]
    case = CASES[name]
    plan, recurrence = default_of(case)
    assert plan.threads_per_lane == shared
    source = emit_cuda(parallelize(case.make(), CUDA_TARGET, plan))
    code = nvcc.sass(source), nvcc.compile_resources(source)
    for few, (most, special) in zip((True, False), ways, strict=True):
        parts = parts_of(plan, recurrence)
        threads = plan.threads_per_block
        row = counted(code, parts, threads, case.stored, few_special=few)
        assert row["mufu"] == pytest.approx(special / 16)
        assert most - 1 < row["instructions"] <= most
        assert row["barriers"] == pytest.approx(shared / 16 / 32)
    # The last way is the one that the cost model counts.
    made = row["instructions"] * 16 / shared
    assert walk_counts(plan, recurrence).thread == pytest.approx(made, rel=0.1)
    with pytest.raises(ValueError, match="expected a kernel nobody, found none"):
        counted(code, (Part("nobody", (1,)),), 128, case.stored)


def test_rows_of_peers_are_kept(monkeypatch, tmp_path):
    """Those that an earlier result has; of the others it is said that their source is not there."""
    monkeypatch.setattr(machine_code, "_ours", lambda case, folder: [{"who": "ours"}])
    monkeypatch.setattr(machine_code, "predicted", lambda row, *_: {"issue": row["instructions"]})
    before = {"who": "CUB `DeviceScan`, look-back", "instructions": 100.0}
    case = CASES["affine 12288 x 65536"]
    monkeypatch.setattr(machine_code, "code_of", _missing)
    ours, *rows = machine_code.rows_of(case, None, tmp_path, [{"who": "ours"}, before])
    assert ours == {"who": "ours"} and [row["who"] for row in rows] == [p.name for p in case.peers]
    # Their counts; their bounds are the model's of today.
    known = [{**before, "predicted": {"issue": 100.0}}]
    assert [row for row in rows if "missing" not in row] == known


def _missing(*_):
    raise RuntimeError("no source")


def test_plans_without_a_known_pass_are_refused():
    case = CASES["selective 8 x 2048 x 2048 x 16"]
    plan, recurrence = default_of(case)
    with pytest.raises(ValueError, match="expected a walk of shared lanes or tiles, found"):
        parts_of(plan.with_(chunks=8), recurrence)
