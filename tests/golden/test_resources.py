"""What the default plans' kernels take, kept in a file: registers, shared memory, barriers, and
how wide they load and store, read from the machine code.

python -m pytest tests/golden/test_resources.py --update-golden
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bench.gpu_loops import rwkv6
from tests.programs.serving_programs import make_wkv_five, make_wkv_six
from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    emit_cuda,
)
from tests.support.cusim import nvcc
from tests.support.tiers import SEED, longer, paired
from tvm_scan import default_plan, extract, library, parallelize

KEPT = Path(__file__).parent / "resources.json"
#: Releases of nvcc allocate registers a little differently, and unroll the ends of loops so.
REGISTERS, ACCESSES = 6, 0.25

WORKLOADS = {
    "cumsum, long": lambda: library.cumsum(2, 1 << 20),
    "cumsum, many": lambda: library.cumsum(4096, 4096),
    "cummax": lambda: library.cummax(512, 4096, "float64"),
    "ema": lambda: library.ema(4096, 1000, alpha="lane", initial="first", layout="ld"),
    "linear": lambda: library.linear_recurrence(64, 4096),
    "linear, states": lambda: library.linear_recurrence(
        64, 65536, "float64", initial_state=True, final_state=True
    ),
    "linear, symbolic": lambda: library.linear_recurrence(None, None, reverse=True),
    "selective scan, many": lambda: library.selective_scan(8, 2048, 2048, 16),
    "selective scan": lambda: library.selective_scan(2, 64, 2048, 16),
    "selective scan, channels last": lambda: library.selective_scan(
        2, 64, 2048, 16, layout="bld", form="step", initial_state=True, final_state=True
    ),
    "selective scan, in chunks": lambda: library.selective_scan(1, 2048, 65536, 16),
    "rwkv6": lambda: rwkv6(32, 1024, 64),
    "rwkv6, in chunks": lambda: rwkv6(32, 8192, 64),
    "rwkv6 as served": lambda: make_wkv_six(32, 64),
    "rwkv5 as served": lambda: make_wkv_five(32, 64),
    "selective scan, few": lambda: library.selective_scan(1, 8, 65536, 16),
}


def barriers(source):
    """Of every kernel, in the order of the source."""
    bodies = source.split("__global__")[1:]
    return [b.count("__syncthreads()") for b in bodies if "{" in b.split(";")[0]]


def accesses(source):
    """Of every kernel: accesses to global memory by kind and bits; LDGSTS are copies to shared."""
    found = {}
    for part in re.split(r"\n\s*\.text\.", nvcc.sass(source))[1:]:
        name = part.partition(":")[0]
        made = re.findall(r"\b(LDG|STG|LDGSTS)\.E((?:\.\w+)*)", part)
        width = [
            next((b for b in ("128", "64", "U16", "U8") if b in more.split(".")), "32")
            for _, more in made
        ]
        found[name] = dict(
            Counter(f"{kind} {bits}" for (kind, _), bits in zip(made, width, strict=True))
        )
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_default_plans_take_what_they_took(name, request):
    """On sm_90: no spills, no stack, the shared memory of the plan, and as many registers."""
    func = WORKLOADS[name]()
    recurrence = extract(func)
    plan = default_plan(CUDA_TARGET, recurrence)
    scheduled = parallelize(func, CUDA_TARGET, plan)
    resources = check_nvcc(scheduled)
    source = emit_cuda(scheduled)
    for kernel, taken in resources.items():
        assert taken.stack == 0, f"{kernel} keeps {taken.stack} bytes per thread in memory"
        assert taken.shared_bytes <= plan.smem_bytes(recurrence)
    now = {
        "plan": str(plan),
        "registers": {kernel: r.registers for kernel, r in sorted(resources.items())},
        "shared": {kernel: r.shared_bytes for kernel, r in sorted(resources.items())},
        "barriers": barriers(source),
        "accesses": accesses(source) if nvcc.nvdisasm_path() else None,
    }
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if request.config.getoption("--update-golden"):
        kept[name] = now
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    was = kept[name]
    hint = "if the change is meant, update the golden file"
    for key in ("plan", "shared", "barriers"):
        assert now[key] == was[key], f"{key}: {hint}"
    assert now["registers"].keys() == was["registers"].keys()
    for kernel, count in now["registers"].items():
        assert abs(count - was["registers"][kernel]) <= REGISTERS, f"{kernel}: {hint}"
    for kernel, made in (now["accesses"] or {}).items():
        assert made == pytest.approx(was["accesses"][kernel], rel=ACCESSES), f"{kernel}: {hint}"
        if "vector_loads=True" in now["plan"] and "symbolic" not in name:
            # Where nothing is read at every step, in the kernel of the carries, nothing is wide;
            # one that clears words reads nothing at all.
            reads = [access for access in made if access.startswith("LD")]
            exempt = not reads or kernel.endswith("_kernel_1")
            assert wide(made) or exempt, f"{kernel} reads nothing at 128 bits"


def wide(made):
    """Loads of 128 bits."""
    return made.get("LDG 128", 0) + made.get("LDGSTS 128", 0)


def test_the_table_has_every_workload_and_its_wide_loads():
    kept = json.loads(KEPT.read_text())
    assert kept.keys() == WORKLOADS.keys()
    for row in kept.values():
        assert row.keys() == {"plan", "registers", "shared", "barriers", "accesses"}
        assert row["accesses"].keys() == row["registers"].keys() == row["shared"].keys()


#: Of the same kernels; what changes with an architecture is how many registers ptxas takes.
OTHERS = longer(list(WORKLOADS)[SEED % 3 :: 3], list(WORKLOADS))


@pytest.mark.parametrize(("name", "arch"), paired(OTHERS, ["sm_80", "sm_100"]))
def test_other_architectures_spill_nothing_either(name, arch):
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: registers and spills of the kernels are not checked")
    source = emit_cuda(parallelize(WORKLOADS[name](), CUDA_TARGET))
    for kernel, taken in nvcc.compile_resources(source, arch=arch).items():
        assert taken.spill_stores == taken.spill_loads == 0, f"{kernel} on {arch}: {taken}"
