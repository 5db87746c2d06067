"""The way from a kernel's name to a built library: the loop, its schedule, the compiler."""

from __future__ import annotations

import tempfile
from ast import literal_eval
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_scan._files import check_room
from tvm_scan.torch.kernels.devices import Device, target_of
from tvm_scan.torch.kernels.linking import link
from tvm_scan.torch.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from tvm_scan.schedules.choose.plan_of import Records

#: Stands for the plan of a loop that runs as it is; the options that it decides come after it.
SERIAL = "serial"


def build_kernel(spec: KernelSpec, plan: str, device: Device) -> Any:
    """Build a kernel with symbolic extents; an executable with a function ``main``.

    On a GPU it also has the function that `tvm_scan.torch.kernels.workspace` asks.
    """
    import tvm

    from tvm_scan.schedules import ScanPlan, parallelize
    from tvm_scan.schedules.cpu.vector_loops import with_vector_loops

    target = target_of(device)
    is_serial = plan.split()[:1] == [SERIAL]
    loop = _symbolic_loop(_decided(spec, plan) if is_serial else spec)
    if not is_serial:
        scheduled = parallelize(loop, target, ScanPlan.parse(plan))
    else:
        make = _one_thread_a_lane if device.is_gpu else with_vector_loops
        scheduled = make(loop, target)
    scheduled = scheduled.with_attr("global_symbol", "main")
    if not device.is_gpu:
        with _compact() if is_serial else nullcontext():
            return tvm.compile(scheduled, target=target)
    return build_for_gpu(scheduled, target, spec.sizes)


def serial_plan(
    spec: KernelSpec, sizes: tuple[int, ...], device: Device, records: Records | None
) -> str:
    """Return the plan of a loop that is no scan, with what it decides for some sizes."""
    from tvm_scan.schedules.analysis import analyse
    from tvm_scan.schedules.choose.plan_of import recorded_plan

    target, recorded = target_of(device), None
    if spec.measured_as is not None:
        (loop,) = analyse(loop_at(spec.measured_as, sizes)).accepted
        recorded = recorded_plan(loop, target, records)
    schedules = import_module(f"tvm_scan.schedules.{spec.decided_by}")
    by_name = dict(zip(spec.sizes, sizes, strict=True))
    options = schedules.decide(dict(spec.options), by_name, target, recorded)
    return " ".join((SERIAL, *(f"{name}={value}" for name, value in options.items())))


def _decided(spec: KernelSpec, plan: str) -> KernelSpec:
    """Name a kernel with what its plan decides."""
    from tvm_scan.errors import PlanError

    try:
        pairs = [part.split("=") for part in plan.split()[1:]]
        options = {name: literal_eval(value) for name, value in pairs}
    except (ValueError, SyntaxError) as error:
        raise PlanError(f"expected decisions such as {SERIAL} columns=64, got {plan}") from error
    return replace(spec, options=tuple(sorted((dict(spec.options) | options).items())))


def _compact() -> Any:
    """Leave out TVM's search for buffers that could be smaller.

    A loop that is no scan holds only what it uses. To find that out again takes as long as the rest
    of a build: `delta_adjoint` on a Zen 3 takes 3.4 s with it and 1.6 s without, for the same code.
    """
    from tvm.ir.transform import PassContext

    now = PassContext.current()
    return PassContext(
        opt_level=now.opt_level,
        required_pass=now.required_pass,
        disabled_pass=[*now.disabled_pass, "s_tir.CompactBufferAllocation"],
        instruments=now.instruments,
        config=dict(now.config),
    )


def build_for_gpu(scheduled: Any, target: Any, sizes: tuple[str, ...]) -> Any:
    """Build a scheduled function called ``main`` and the one that `workspace` adds to it."""
    from tvm_scan.cuda_math import build
    from tvm_scan.torch.kernels.workspace import with_scratch

    return build(with_scratch(scheduled, sizes), target)


def _one_thread_a_lane(loop: Any, target: Any) -> Any:
    """A GPU's form of a loop that is no scan: lanes side by side, each one step after another."""
    from tvm.s_tir import Schedule

    from tvm_scan.schedules.gpu.leftover import bind_leftovers
    from tvm_scan.schedules.machine.device import device_of
    from tvm_scan.schedules.splice import ensure_blocks

    sch = Schedule(ensure_blocks(loop))
    bind_leftovers(sch, device_of(target))
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


#: ``tvm_scan_launch`` is TVM's function that runs tasks: each is given its number, how many there
#: are (beside a handle for barriers, of which kernels have none), and their data. The team may be
#: smaller than is asked for, so that each of it asks how large it is.
_LAUNCHER = """
@tvm_scan_parallel = global ptr null
@tvm_scan_number = global ptr null
@tvm_scan_size = global ptr null
@tvm_scan_threads = global i32 0

define internal void @tvm_scan_part(ptr %call) {
  %number.of = load ptr, ptr @tvm_scan_number
  %size.of = load ptr, ptr @tvm_scan_size
  %number = call i32 %number.of()
  %size = call i32 %size.of()
  %group = alloca { ptr, i32 }
  %count = getelementptr { ptr, i32 }, ptr %group, i32 0, i32 1
  store ptr null, ptr %group
  store i32 %size, ptr %count
  %task = load ptr, ptr %call
  %data.at = getelementptr { ptr, ptr, i32 }, ptr %call, i32 0, i32 1
  %data = load ptr, ptr %data.at
  %code = call i32 %task(i32 %number, ptr %group, ptr %data)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %keep, label %end
keep:
  %code.at = getelementptr { ptr, ptr, i32 }, ptr %call, i32 0, i32 2
  store i32 %code, ptr %code.at
  br label %end
end:
  ret void
}

define i32 @tvm_scan_launch(ptr %task, ptr %data, i32 %count) {
  %call = alloca { ptr, ptr, i32 }
  %data.at = getelementptr { ptr, ptr, i32 }, ptr %call, i32 0, i32 1
  %code.at = getelementptr { ptr, ptr, i32 }, ptr %call, i32 0, i32 2
  store ptr %task, ptr %call
  store ptr %data, ptr %data.at
  store i32 0, ptr %code.at
  %parallel = load ptr, ptr @tvm_scan_parallel
  %threads = load i32, ptr @tvm_scan_threads
  call void %parallel(ptr @tvm_scan_part, ptr %call, i32 %threads, i32 0)
  %code = load i32, ptr %code.at
  ret i32 %code
}
"""


def build_launcher() -> bytes | None:
    """Build the library by which tasks run on torch's threads (`team`); None without a linker."""
    import tvm

    with tempfile.TemporaryDirectory() as folder:
        text, code, library = (Path(folder) / f"launcher.{end}" for end in ("ll", "o", "so"))
        try:
            text.write_text(_LAUNCHER)
            tvm.runtime.load_module(str(text)).write_to_file(str(code), "o")
            link(str(library), [str(code)])
            return library.read_bytes()
        except (OSError, RuntimeError):
            return None


def exported(executable: Any) -> bytes | None:
    """Return the built library as a file's content; None without a linker, or room for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        try:
            check_room()
            executable.export_library(str(path), fcompile=link)
        except (OSError, RuntimeError):  # keep it in memory
            return None
        return path.read_bytes()


def loop_of(spec: KernelSpec, extents: tuple[int | None, ...]) -> Any:
    """Return the sequential loop of a kernel; extents that are None are symbolic."""
    from tvm_scan.library.arguments import make_extent

    arguments = {
        name: make_extent(spec.factory, name, extent)
        for name, extent in zip(spec.sizes, extents, strict=True)
    }
    # A user's own step needs TVM's importers and the passes of Relax, which no other loop does.
    is_step = spec.factory in ("pointwise_step", "sliced_step")
    home = import_module("tvm_scan.torch.trace.lowered" if is_step else "tvm_scan.loops")
    return getattr(home, spec.factory)(**arguments, **dict(spec.options))


def loop_at(spec: KernelSpec, sizes: tuple[int, ...]) -> Any:
    """Return the loop of a kernel at some sizes, from the one with symbolic extents.

    Writing a loop takes a hundred times as long as giving numbers to its extents.
    """
    from tvm import tirx

    from tvm_scan import tir

    loop, wanted = _symbolic_loop(spec), dict(zip(spec.sizes, sizes, strict=True))
    known: dict[Any, Any] = {}
    bound: set[str] = set()
    for param in loop.params:
        if not tirx.is_buffer_var(param):
            if param.name in wanted:
                known[param] = tirx.IntImm(tir.dtype_of(param), wanted[param.name])
                bound.add(param.name)
            continue
        shape = tir.shape_of(param)
        names = [extent.name if isinstance(extent, tirx.Var) else "" for extent in shape]
        # TVM gives numbers to the extents of a buffer that has no others.
        if all(name in wanted for name in names) and not bound.issuperset(names):
            extents = [tirx.IntImm(tir.dtype_of(extent), wanted[extent.name]) for extent in shape]
            known[param] = tirx.decl_buffer(extents, tir.dtype_of(param), param.name)
            bound.update(names)
    return loop.specialize(known) if bound == set(wanted) else loop_of(spec, sizes)


@lru_cache(maxsize=32)
def _symbolic_loop(spec: KernelSpec) -> Any:
    return loop_of(spec, (None,) * len(spec.sizes))
