"""Loops and ways through machine code, and what ``bench.machine_code`` makes of them."""

import pytest

from bench.machine_code import counted, occupancy
from bench.machine_code_cases import CASES, Part, default_of, parts_of
from bench.sass import Instruction, Kernel, kernels, pipe_of
from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tests.support.cusim import nvcc
from tests.support.cusim.nvcc import Resources
from tvm_scan import parallelize

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


@pytest.mark.parametrize(
    ("opcode", "pipe", "width"),
    [
        ("FFMA.FTZ", "fma", 0),
        ("MUFU.EX2", "special", 0),
        ("LDGSTS.E.BYPASS.128", "global", 16),
        ("LDS.U16", "shared", 2),
        ("STG.E", "global", 4),
        ("UIADD3", "uniform", 0),
        ("SHFL.BFLY", "shuffle", 0),
        ("IADD3", "alu", 0),
        ("BAR.SYNC.DEFER_BLOCKING", "control", 0),
        ("HGMMA.64x64x16.F32", "matrix", 0),
    ],
)
def test_pipes_and_widths(opcode, pipe, width):
    instruction = Instruction(opcode, False, None)
    assert (pipe_of(instruction), instruction.bytes) == (pipe, width)


def test_occupancy_is_what_fits():
    assert occupancy(Resources(32, 0, 0, 0, 0, 1), 256) == 1
    assert occupancy(Resources(33, 0, 0, 0, 0, 1), 256) == 6 * 256 / 2048  # 40 registers each
    assert occupancy(Resources(32, 0, 0, 48 << 10, 0, 1), 128) == 4 * 128 / 2048


@pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="nvdisasm is missing: no SASS to read")
def test_a_selective_scan_takes_ten_instructions_for_a_state():
    """One exponential for each state and step and three for the step; a barrier for 32 steps."""
    name = "selective 8 x 2048 x 2048 x 16"
    case = CASES[name]
    plan, recurrence = default_of(case)
    source = emit_cuda(parallelize(case.make(), CUDA_TARGET, plan))
    code = nvcc.sass(source), nvcc.compile_resources(source)
    row = counted(code, parts_of(plan, recurrence), plan.threads_per_block, case.stored)
    assert row["mufu"] == pytest.approx(1 + 3 / 16)
    assert 5 < row["instructions"] <= 10
    assert row["barriers"] == pytest.approx(1 / (32 * 4))
    with pytest.raises(ValueError, match="expected a kernel nobody, found none"):
        counted(code, (Part("nobody", (1,)),), 128, case.stored)


def test_plans_without_a_known_pass_are_refused():
    case = CASES["selective 8 x 2048 x 2048 x 16"]
    plan, recurrence = default_of(case)
    with pytest.raises(ValueError, match="expected a walk of shared lanes or tiles, found"):
        parts_of(plan.with_(chunks=8), recurrence)
