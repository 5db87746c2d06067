"""What is counted of plans for a CPU, and machines by the constants that are shipped."""

from dataclasses import replace

from tvm.target import Target

from bench.regret_cases import Case
from tvm_scan import ScanPlan, extract
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.machine import cpu_constants
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import with_features
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["CHIP", "chosen_on", "machine_of", "seconds_on", "work_of"]

#: Of AVX2, whatever is shipped.
CHIP = replace(CpuChip(), vector_bytes=32, nearest=32 << 10, private=512 << 10)


def machine_of(kind, cores=2, instructions=None):
    """A target, and its machine by the constants that are shipped, whatever this one is.

    With `instructions` the target has those of another kind.
    """
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": instructions or kind})
    chip = with_features(cpu_constants._shipped(kind), target)
    return target, replace(Machine.of(target), cores=cores, chip=chip, counting=0.0)


def work_of(family, sizes, plan, chip=CHIP, **options):
    """What one core has to do of a plan."""
    step = step_of(extract(Case(family, sizes, options).func))
    return ScanPlan.parse(plan).work(step, chip)


def seconds_on(kind, cores, family, sizes, plan, instructions=None, **options):
    """Prediction of a plan on some cores of a kind of processor."""
    found = extract(Case(family, sizes, options).func)
    return ScanPlan.parse(plan).cost(found, machine_of(kind, cores, instructions)[1]).seconds


def chosen_on(kind, family, sizes, **options):
    """The default plan on two cores of a kind of processor."""
    target, machine = machine_of(kind)
    return decide(target, extract(Case(family, sizes, options).func), machine).chosen.plan
