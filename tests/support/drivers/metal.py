"""Metal's text, for which there is no driver here: held against its structure, and run as OpenCL.

TVM writes both languages from the same statements; what they call alike is replaced word for word,
and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tvm_scan.schedules.launch import opencl
from tvm_scan.schedules.launch.program import Kernel

__all__ = ["BARRIER", "Metal", "as_opencl", "driver", "faults", "shared_bytes", "why_unavailable"]

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup)"
#: Bytes of Metal's types.
_BYTES = {
    **dict.fromkeys(("bool", "char", "uchar"), 1),
    **dict.fromkeys(("half", "bfloat", "short", "ushort"), 2),
    **dict.fromkeys(("float", "int", "uint"), 4),
    **dict.fromkeys(("long", "ulong"), 8),
}
#: What all devices have: the table of arguments has 31 buffers, a threadgroup 32 KiB.
_BUFFERS, _SHARED = 31, 32 << 10
_PARAMETER = re.compile(r"\[\[ buffer\((\d+)\) \]\]")
_SHARED_ARRAY = re.compile(r"^ +threadgroup (\w+?)([234]?) \w+\[(\d+)\];", re.MULTILINE)
#: Functions of C or CUDA, and numbers, that Metal has not.
_FOREIGN = re.compile(
    r"\b(double|inff|nan|__(?!TVM)\w+|(?:exp|log|log1p|pow|sqrt|tanh?|fabs|fmax|fmin)f)\b"
)
#: What both languages have, by another word.
_WORDS = (
    (r"^#include <metal_stdlib>$", "#undef select"),
    (r"^using namespace metal;$", "#define select(a, b, which) ((which) ? (b) : (a))"),
    (r"\bkernel void\b", "__kernel void"),
    (re.escape(BARRIER), opencl.BARRIER),
    (r"\bdevice\b", "__global"),
    (r"\bthreadgroup\b", "__local"),
    (r"\bthread (?=\w)", ""),
    (r"\bas_type<(\w+)>", r"as_\1"),
    (r" \[\[ buffer\(\d+\) \]\]", ""),
    # Scalars come one by one, and the position of a thread by a function.
    (r"\barg\.(\w+)", r"\1"),
    (r",\s+uint\d? blockIdx \[\[threadgroup_position_in_grid\]\]", ""),
    (r",\s+uint\d? threadIdx \[\[thread_position_in_threadgroup\]\]", ""),
    *(
        (rf"\b{name}{axis}\b", f"(uint){function}({number})")
        for name, function in (("blockIdx", "get_group_id"), ("threadIdx", "get_local_id"))
        for axis, number in ((r"\.x", 0), (r"\.y", 1), (r"\.z", 2), ("", 0))
    ),
)
_STRUCT = re.compile(r"struct \w+_args_t \{\n(.*?)\};", re.DOTALL)
_ARGUMENT = re.compile(r"constant \w+_args_t& arg \[\[ buffer\(\d+\) \]\]")


def as_opencl(kernel: Kernel) -> Kernel:
    """The same kernel in OpenCL's words; its buffers come first."""
    text = kernel.source
    fields = _STRUCT.search(text)
    scalars = re.findall(r"(\w+) (\w+);", fields[1]) if fields else []
    text = _ARGUMENT.sub(", ".join(f"{kind} {name}" for kind, name in scalars), text)
    for pattern, replacement in _WORDS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    kinds = sorted(kernel.parameters, key=lambda kind: kind != "buffer")
    return replace(kernel, source=text, parameters=tuple(kinds))


class Metal:
    """Metal's text in OpenCL's words, on a driver of OpenCL; see ``Driver``."""

    def __init__(self) -> None:
        self.opencl = opencl.driver()
        self.name = f"text of Metal in the words of OpenCL, on {self.opencl.name}"
        self.extensions = self.opencl.extensions
        self.buffer, self.read = self.opencl.buffer, self.opencl.read

    def launch(
        self, kernel: Kernel, args: Sequence[Any], grid: list[int], block: list[int]
    ) -> None:
        """Run a kernel."""
        kinds = zip(kernel.parameters, args, strict=True)
        ordered = sorted(kinds, key=lambda pair: pair[0] != "buffer")
        self.opencl.launch(_as_opencl(kernel), [arg for _, arg in ordered], grid, block)


_as_opencl = lru_cache(maxsize=256)(as_opencl)


@lru_cache(maxsize=1)
def driver() -> Metal:
    """The one driver of this process."""
    return Metal()


def why_unavailable() -> str | None:
    """What is missing, and which package brings it; None where kernels run."""
    return opencl.why_unavailable()


def faults(kernel: Kernel, barriers: int) -> list[str]:
    """Say what is wrong with the text of a kernel.

    Parameters
    ----------
    kernel : Kernel
        For Metal.
    barriers : int
        Of the same kernel in OpenCL.
    """
    text, found = kernel.source, []
    heads = len(re.findall(rf"^kernel void {kernel.name}\(", text, re.MULTILINE))
    bound = list(map(int, _PARAMETER.findall(text)))
    wanted = kernel.parameters.count("buffer")
    scalars = int(wanted < len(kernel.parameters))
    if "using namespace metal;" not in text or heads != 1:
        found.append(f"expected one function {kernel.name} of Metal, found {heads}")
    if bound != list(range(wanted + scalars)) or len(bound) > _BUFFERS:
        found.append(f"expected {wanted} buffers and {scalars} of scalars, found {bound}")
    if text.count(BARRIER) != barriers:
        found.append(f"expected {barriers} barriers, found {text.count(BARRIER)}")
    if shared_bytes(kernel) > _SHARED:
        found.append(
            f"expected {_SHARED} bytes of threadgroup memory, found {shared_bytes(kernel)}"
        )
    if foreign := set(_FOREIGN.findall(text)):
        found.append(f"expected words of Metal, found {', '.join(sorted(foreign))}")
    return found


def shared_bytes(kernel: Kernel) -> int:
    """Threadgroup memory of a kernel."""
    arrays = _SHARED_ARRAY.findall(kernel.source)
    return sum(_BYTES[kind] * int(width or 1) * int(cells) for kind, width, cells in arrays)
