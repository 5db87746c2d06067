"""The pages of bench/results/targets.json: docs/targets.md, and one of each kind of GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.origin import origin
from tvm_scan.schedules.machine.device import DEVICES, Device

__all__ = ["PAGES", "page"]


@dataclass(frozen=True)
class _About:
    """What a target's page says that is no figure.

    Attributes
    ----------
    title : str
        Its name, as its makers write it.
    runs, compiled : str
        A line each for the table of all targets: where kernels ran, and what was compiled only.
    use : str
        How it is asked for, and who launches its kernels.
    ran, not_run : str
        What was run on which driver, and what was not.
    """

    title: str
    runs: str
    compiled: str
    use: str
    ran: str
    not_run: str


_ABOUT = {
    "opencl": _About(
        title="OpenCL",
        runs="{opencl}",
        compiled="layers of models; halves, which this driver lacks",
        use="""```python
from tvm_scan import library, parallelize

scheduled = parallelize(library.linear_recurrence(4, 4096), "opencl")
assert "blockIdx.x" in scheduled.script()
```

A target says what its device has beyond the least: `{{"kind": "opencl", "max_threads_per_block": 1024,
"max_shared_memory_per_block": 49152}}`. TVM's wheels have the code generator and no runtime: a TVM that
is built with OpenCL runs what `tvm.compile` makes, and
[tests/support/drivers/opencl.py](../../tests/support/drivers/opencl.py) launches it by pyopencl.
""",
        ran="""{opencl}: the schedules and families below; [the delta rule](../families.md) in chunks
(lengths of 0, 1 and 19, heads of 7 by 33 cells); `log1p` from -0.8 to 1e30, infinities, 65,601 blocks
([tests/devices](../../tests/devices/test_limits.py)). A part of the triples ran on the simulated device
as well, under its detector of races and of barriers that some threads miss.
""",
        not_run="""Layers of Mamba and RWKV-4 that `from_exported` imports, cumulative operators
of Relax and kernels of one step that serve models are compiled
([test_models.py](../../tests/devices/test_models.py)). PoCL has no `cl_khr_fp16` on this machine, so
halves are compiled only.
""",
    ),
    "webgpu": _About(
        title="WebGPU",
        runs="{webgpu}, by wgpu; [pages](browser.md) in Chromium (SwiftShader)",
        compiled="kernels that shuffle in subgroups; layers of RWKV",
        use="""```python
from tvm_scan import library, parallelize

scheduled = parallelize(library.linear_recurrence(4, 4096), "webgpu")
assert "blockIdx.x" in scheduled.script()
```

`tvm-scan compile FILE --target webgpu --out page` writes a folder that a browser opens:
[a page in a browser](../browser.md). The name `webgpu` stands for what every implementation has: 256
threads and 16 KiB a block, 8 buffers a kernel; `{{"kind": "webgpu", "max_shared_memory_per_block":
32768}}` asks for more. A grid beyond 65,535 blocks is packed by TVM into a second dimension; indices of
64 bits are narrowed to 32. `"supports_subgroups": true` gives warps of 32 threads that shuffle, and
kernels that say `enable subgroups;`; halves say `enable f16;`, and need an adapter with `shader-f16`.
""",
        ran="""{webgpu}, by wgpu, which hands its WGSL to a Vulkan driver: the schedules and
families below; the delta rule in chunks; `log1p`, infinities, 65,601 blocks; a selective scan in halves.
Chromium's compiler takes every kernel of the tests: it alone holds WGSL to barriers in
uniform control flow. In Chromium (SwiftShader) a sum, an affine recurrence and a selective scan
are right at 2^20 steps, and a Mamba layer on the bytes of a text
([test_pages.py](../../tests/devices/test_pages.py)). A part of the triples ran on the simulated device as
well, under its detector of races and of barriers that some threads miss.
""",
        not_run="""Kernels that shuffle are compiled in Chromium: neither llvmpipe nor
SwiftShader has subgroups of 32 threads. Layers of Mamba and RWKV-4 that `from_exported` imports,
cumulative operators of Relax and kernels of one step are compiled
([test_models.py](../../tests/devices/test_models.py)).
""",
    ),
    "vulkan": _About(
        title="Vulkan",
        runs="the WGSL of `webgpu`, which wgpu hands to a Vulkan driver as SPIR-V: {webgpu}",
        compiled="nothing: TVM's wheels have no generator of SPIR-V",
        use="""TVM's wheels have no generator of SPIR-V, so `parallelize(func, "vulkan")` is refused by
name there; a TVM that is built with Vulkan takes it, by the row below. With the wheels, kernels of
[webgpu](webgpu.md) reach a Vulkan driver: wgpu translates their WGSL to SPIR-V, in a program
([tests/support/drivers/webgpu.py](../../tests/support/drivers/webgpu.py)) as in a browser.

<!-- test: skip -->
```python
parallelize(func, "webgpu")  # whose text runs on Vulkan
```
""",
        ran="""The kernels of [webgpu](webgpu.md) on {webgpu}: that is a Vulkan driver.
""",
        not_run="""SPIR-V of TVM's own: never seen by a test.
""",
    ),
    "metal": _About(
        title="Metal",
        runs="nowhere; its text, with Metal's words replaced by OpenCL's, on {opencl}",
        compiled="text, held against its structure; layers of models",
        use="""```python
from tvm_scan import library, parallelize

scheduled = parallelize(library.linear_recurrence(4, 4096), "metal")
assert "blockIdx.x" in scheduled.script()
```

TVM takes the threads of a warp to be 16, which shuffle nothing; Apple's GPUs have 32:
`{{"kind": "metal", "thread_warp_size": 32, "max_threads_per_block": 1024}}` says so, and its trees shuffle.
TVM's wheels have the code generator and no runtime: a TVM that is built on a Mac has both.
""",
        ran="""No kernel ran on Metal. TVM writes OpenCL and Metal from the same statements: the
text of Metal, in which a dozen words are replaced by OpenCL's and nothing else
([tests/support/drivers/metal.py](../../tests/support/drivers/metal.py)), ran on {opencl} with the
schedules and families below. So the arithmetic, indices, barriers and arguments of the text are right;
that Apple's compiler takes it is not shown.
""",
        not_run="""The text itself, as Apple's compiler would see it: one function a kernel, the buffers
numbered from 0 and one of scalars after them (31 at most), as many barriers as in OpenCL, shared arrays
of the bytes that the plan says, no word of C, CUDA or float64
([test_text.py](../../tests/devices/test_text.py)). Layers of Mamba and RWKV-4, cumulative operators of
Relax, kernels of one step; trees that shuffle.
""",
    ),
    "rocm": _About(
        title="ROCm",
        runs="nowhere",
        compiled="code objects of gfx90a by the LLVM in TVM: no scratch memory, no spills",
        use="""```python
from tvm_scan import library, parallelize

target = {{"kind": "rocm", "mcpu": "gfx90a"}}
scheduled = parallelize(library.linear_recurrence(4, 4096), target)
assert "blockIdx.x" in scheduled.script()
```

TVM's wheels have the code generator and no runtime; `tvm.compile` also wants ROCm's library of functions
and its linker, which a TVM that is built with ROCm finds.
""",
        ran="""Nothing: no driver of AMD's GPUs runs without one. A part of the same programs ran on the
simulated device, under its detector of races and of barriers that some threads miss.
""",
        not_run="""Code objects of gfx90a of the schedules and families below, by the LLVM inside of
TVM ([test_text.py](../../tests/devices/test_text.py)): their notes say no scratch memory, no register
that was spilled, no more vector and scalar registers than a wave has, and no more shared memory (LDS)
than the plan says; no function is called. Layers of Mamba and RWKV-4, cumulative operators of Relax,
kernels of one step.
""",
    ),
}
#: Pages of a result, below docs.
PAGES = ("targets.md", *(f"targets/{kind}.md" for kind in _ABOUT))


def page(name: str, found: Mapping[str, Any]) -> str:
    """A page of a result.

    Parameters
    ----------
    name : str
        One of ``PAGES``.
    found : mapping
        The result.
    """
    if name == PAGES[0]:
        return _index(found)
    return _page_of(name.rpartition("/")[2].removesuffix(".md"), found)


def _index(found: Mapping[str, Any]) -> str:
    drivers, outcomes = found["drivers"], found["outcomes"]
    lines = [_HEAD.format(origin=origin(found["machine"]))]
    lines += ["| target | run on | compiled only |", "|---|---|---|"]
    lines.append(
        "| [cuda](cuda.md) | the simulated device of the tests, in several orders, under a race "
        "detector | machine code by nvcc |"
    )
    for kind, about in _ABOUT.items():
        ran = about.runs.format(**drivers)
        lines.append(f"| [{kind}](targets/{kind}.md) | {ran} | {about.compiled} |")
    kinds = ("cuda", *_ABOUT)
    lines += ["", "## What a device has", "", _ROWS]
    lines += _table(["", *(f"`{kind}`" for kind in kinds)], _facts(kinds))
    lines += ["", "## Schedules and families", "", _MATRIX]
    rows = [[b, *(_told(outcomes[d][b]) for d in outcomes)] for b in next(iter(outcomes.values()))]
    rows.append(["all", *(_told(_all(outcomes[d])) for d in outcomes)])
    lines += _table(["schedule", *(f"`{d}`" for d in outcomes)], rows)
    return "\n".join(lines) + "\n"


def _page_of(kind: str, found: Mapping[str, Any]) -> str:
    about, drivers = _ABOUT[kind], found["drivers"]
    lines = [f"# {about.title}", "", f"Kernels of [the target](../targets.md) `{kind}`.", ""]
    lines += [about.use.format(**drivers), "## What was run, on which driver", ""]
    lines += [about.ran.format(**drivers), "## What is compiled only", "", about.not_run]
    lines += ["## What a device has", ""]
    lines += _table(["", f"`{kind}`"], _facts((kind,)))
    if kind in found["outcomes"]:
        told = found["outcomes"][kind]
        lines += ["", "## What runs", "", _ONE.format(origin=origin(found["machine"]))]
        rows = [[builder, _told(row)] for builder, row in told.items()]
        lines += _table(["schedule", "families"], [*rows, ["all", _told(_all(told))]])
        lines += ["", "## What is refused", "", _REFUSED]
        refused = found["refusals"][kind].items()
        lines += _table(["the message", "plans"], [[f"`{said}`", n] for said, n in refused])
    counts = [row for row in found["counts"] if row["target"] == kind]
    if counts:
        lines += ["", "## Counts of kernels", "", _COUNTS[kind == "rocm"]]
        heads = ["recurrence", "plan", "barriers", "shared bytes", "buffers"]
        lines += _table([*heads, *(["registers"] * (kind == "rocm"))], map(_count, counts))
    else:
        lines += ["", f"`python -m bench.targets` ({origin(found['machine'])}) printed this page."]
    return "\n".join(lines) + "\n"


def _count(row: Mapping[str, Any]) -> list[Any]:
    marks = " (default)" if row["default"] else ""
    barriers = ", ".join(map(str, row["barriers"]))
    registers = ", ".join(f"{v} + {s}" for v, s, _ in row["registers"])
    cells = [row["recurrence"], f"`{row['plan']}`{marks}", barriers, row["shared"], row["buffers"]]
    return [*cells, registers] if registers else cells


def _table(heads: list[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def _facts(kinds: tuple[str, ...]) -> list[list[str]]:
    rows = [DEVICES[kind] for kind in kinds]
    return [[label, *(str(value(row)) for row in rows)] for label, value in _FACTS.items()]


def _all(told: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], str]:
    return {(b, a): outcome for b, row in told.items() for a, outcome in row.items()}


def _told(outcomes: Mapping[Any, str]) -> str:
    """Counts of outcomes, the good ones first."""
    counted = Counter(outcomes.values())
    order = sorted(counted, key=lambda one: (one not in _GOOD, one == "refused", one))
    return ", ".join(f"{counted[one]} {one}" for one in order)


_GOOD = ("right", "well-formed")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _lacks(row: Device) -> str:
    return ", ".join(sorted(row.lacks)) or "none"


_FACTS: dict[str, Callable[[Device], object]] = {
    "threads of a block": lambda row: row.threads,
    "shared memory of a block": lambda row: row.shared_bytes,
    "blocks of a grid": lambda row: row.blocks,
    "buffers of a kernel": lambda row: row.buffers,
    "threads of a warp": lambda row: row.warp,
    "barriers of a warp": lambda row: _yes(row.warp_barrier),
    "shuffles that are used": lambda row: _yes(bool(row.shuffles) and row.warp == 32),
    "asynchronous copies": lambda row: _yes(row.async_copies),
    "look-back (release, acquire)": lambda row: _yes(row.ordered_memory),
    "bits of a load": lambda row: row.vector_bits,
    "dtypes that it lacks": _lacks,
}

_HEAD = """# Targets

Every kind of GPU that TVM speaks to has one row
([device.py](../schedules/machine/device.py)); plans, their checks, the default, the search and
the builders ask it and nothing else, so that another kind is another row. The functions are the
same for all: `parallelize(func, "webgpu")`, `get_pipeline("opencl")`,
`tvm-scan explain FILE --target metal`. A plan's string begins with `cuda` for every GPU. Kernels of
`webgpu` run in a browser, in a page that `tvm-scan compile` writes: [browser.md](browser.md).

Each target has a page: what runs, what was run on which driver, what is compiled only, what is refused.
Figures are of `python -m bench.targets` ({origin}). There are no times, since a driver in software says
nothing of a GPU's.
"""
_ROWS = """What a target that does not say has. A plan that a device cannot have is refused with the
device, the limit and a plan that works. Where the threads of a warp cannot wait for one another alone,
those of the block do. Warps that are not of 32 threads shuffle nothing.
"""
_MATRIX = """Each cell: of how many families of the tests' table the kernels gave the sequential
loop's results, on exact inputs (sums of exponentials within their rounding), at lengths of 0,
1, odd, prime, and around a tile. *Well-formed* code was read, and not run. What is refused is listed with its reasons in
[tests/devices/table.py](../tests/devices/table.py) and on each target's page.
"""
_ONE = """Of how many families of the tests' table the kernels are right; `python -m bench.targets`
({origin}), as [all targets](../targets.md#schedules-and-families).
"""
_REFUSED = """What is said of plans of the same table that the device cannot have: what was expected,
what was found, and what works.
"""
_COUNT = """Barriers in the text of each kernel (several kernels follow one another in
`three_phase`), shared memory of a block, buffers of the widest kernel"""
_COUNTS = (
    f"{_COUNT}.\n",
    f"{_COUNT}, vector and\nscalar registers of each kernel; no kernel has scratch memory.\n",
)
