"""A scheduled function as kernels, and what its host does with them, as data.

TVM splits a function into kernels and a function of the host that allocates what lies between them
and launches them. Its wheels have no runtimes for most kinds of GPUs, so that function is written
down as steps, which a page and the tests' drivers perform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch.numbers import Number, ceil_divided, number_of, operation
from tvm_scan.schedules.machine.device import Device, device_of
from tvm_scan.text import as_text

#: TVM's calling convention of a kernel.
_LAUNCHED = 2
#: Of the pipeline: they leave the host a packed function, which nobody here calls. Those of storage
#: must come after it, and are applied to the kernels alone.
_HOST_PASSES = ["tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize"]

#: A step of a host, with the name of its kind first in the order of its keys::
#:
#:     {"let": name, "value": number}
#:     {"allocate": name, "dtype": dtype, "shape": [number, ..]}
#:     {"launch": kernel, "arguments": [name or number, ..], "grid": [x, y, z], "block": [x, y, z]}
#:     {"if": number, "then": steps, "else": steps}
#:     {"for": name, "extent": number, "do": steps}
Step = dict[str, Any]


@dataclass(frozen=True)
class Kernel:
    """A kernel of a program.

    Attributes
    ----------
    name : str
        Of its function.
    source : str
        Its text.
    parameters : tuple of str
        A dtype for each scalar, ``buffer`` for each buffer, in order. In WGSL the buffers are
        bound in this order, and after them the scalars as one uniform buffer.
    """

    name: str
    source: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Array:
    """A parameter of a program.

    Attributes
    ----------
    name, dtype : str
        Of the buffer.
    shape : tuple of Number
        Its extents: numbers, and names of those that a call brings.
    """

    name: str
    dtype: str
    shape: tuple[Number, ...]


@dataclass(frozen=True)
class Program:
    """Kernels, and who launches them.

    Attributes
    ----------
    parameters : tuple of Array
        In the order of the function.
    kernels : mapping of str to Kernel
        By name.
    steps : tuple of Step
        What the host does, in order.
    """

    parameters: tuple[Array, ...]
    kernels: Mapping[str, Kernel]
    steps: tuple[Step, ...]

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)


class Names:
    """Names of variables, no two alike."""

    def __init__(self) -> None:
        self.table = tir.VarMap()
        self._taken: set[str] = set()

    def add(self, var: Any) -> str:
        """Name a variable after itself, with a number where another one has its name."""
        return self.add_as(var, str(var.name))

    def add_as(self, var: Any, base: str) -> str:
        """Name a variable, with a number where another one has its name."""
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        self.table[var] = name
        return name


def emit(func: tirx.PrimFunc, target: Target, name: str = "main", form: str = "") -> Program:
    """Return what TVM makes of a scheduled function, without a runtime.

    Parameters
    ----------
    func : tirx.PrimFunc
        Whose nests are bound to threads.
    target : tvm.target.Target
        Of a GPU.
    name : str
        Of the function, with which the names of its kernels begin.
    form : str
        Of the kernels' text, as ``inspect_source`` of TVM's module takes it; ``asm`` of ROCm.

    Returns
    -------
    Program
        Where TVM packs a grid (WebGPU), grids are those that are dispatched, and the number of the
        last block is the last scalar of a kernel.

    Raises
    ------
    ScanError
        If a nest is bound to no threads.
    """
    device = device_of(target)
    if device.generator:
        func, target = func.without_attr("target"), Target({"kind": device.generator}, host="llvm")
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    with target, tvm.transform.PassContext(disabled_pass=_HOST_PASSES):
        pipeline, _, finalize = tvm.tirx.get_default_tir_pipeline(target)
        mod = pipeline(tirx.transform.BindTarget(target)(mod))
    kernels, host = {}, None
    for symbol, part in mod.functions_items():
        if int(part.attrs.get("calling_conv", 0)) != _LAUNCHED:
            host = part
            continue
        alone = tvm.IRModule({symbol: part})
        for legalize in (tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize()):
            alone = legalize(alone)
        built = tvm.get_global_func(f"target.build.{device.language}")(finalize()(alone), target)
        kinds = [_kind(parameter, device) for parameter in part.params]
        kinds += ["uint32"] if device.packed_blocks else []
        source = str(built.inspect_source(form))
        kernels[str(symbol.name_hint)] = Kernel(str(symbol.name_hint), source, tuple(kinds))
    if host is None:
        raise ScanError(
            "expected a function of a host that launches kernels, found none; bind its loops to "
            "threads, or leave that to parallelize"
        )
    return _Host(kernels, device).program(host)


def _kind(parameter: Any, device: Device) -> str:
    if isinstance(parameter.ty, PointerType):
        return "buffer"
    dtype = tir.dtype_of(parameter)
    # Indices of 64 bits are narrowed by TVM.
    return "int32" if dtype == "int64" and dtype in device.lacks else dtype


class _Host:
    """The host's function, statement by statement."""

    def __init__(self, kernels: Mapping[str, Kernel], device: Device) -> None:
        self.kernels, self.device = kernels, device
        self.numbers, self.buffers = Names(), Names()

    def program(self, host: tirx.PrimFunc) -> Program:
        """Write the function down."""
        arrays = []
        for parameter in host.params:
            for extent in tir.shape_of(parameter):
                if isinstance(extent, tirx.Var) and extent not in self.numbers.table:
                    self.numbers.add(extent)
            shape = tuple(self._number(extent) for extent in tir.shape_of(parameter))
            arrays.append(Array(self.buffers.add(parameter), tir.dtype_of(parameter), shape))
        return Program(tuple(arrays), self.kernels, tuple(self._steps(host.body)))

    def _number(self, expr: Any) -> Number:
        return number_of(expr, self.numbers.table)

    def _steps(self, stmt: Any) -> list[Step]:
        match stmt:
            case tirx.SeqStmt():
                return [step for part in stmt.seq for step in self._steps(part)]
            case tirx.AttrStmt():
                return self._steps(stmt.body)
            case tirx.Bind():
                value = self._number(stmt.value)
                return [{"let": self.numbers.add(stmt.var), "value": value}]
            case tirx.IfThenElse():
                orelse = [] if stmt.else_case is None else self._steps(stmt.else_case)
                then = self._steps(stmt.then_case)
                return [{"if": self._number(stmt.condition), "then": then, "else": orelse}]
            case tirx.For():
                extent, name = self._number(stmt.extent), self.numbers.add(stmt.loop_var)
                return [{"for": name, "extent": extent, "do": self._steps(stmt.body)}]
            case tirx.AllocBuffer():
                dtype = tir.dtype_of(stmt.buffer)
                shape = [self._number(extent) for extent in tir.shape_of(stmt.buffer)]
                return [{"allocate": self.buffers.add(stmt.buffer), "dtype": dtype, "shape": shape}]
            case tirx.DeclBuffer():
                self.buffers.table[stmt.buffer] = self.buffers.table[_holder(stmt.data)]
                return []
            case tirx.Evaluate() if tir.as_int(stmt.value) is not None:
                return []
            case tirx.Evaluate() if (tir.call_name(stmt.value) or "").endswith("kernel"):
                return [self._launch(stmt.value)]
        raise ScanError(f"expected a statement of a host, got {as_text(stmt)}; bind it to threads")

    def _launch(self, call: Any) -> Step:
        name, *arguments = call.args
        kernel, packed = self.kernels[str(name.value)], self.device.packed_blocks
        kinds = kernel.parameters[:-1] if packed else kernel.parameters
        tags = [str(tag) for tag in call.attrs["launch_params"]]
        sizes = [self._number(size) for size in arguments[len(kinds) :]]
        extents = dict(zip(tags, sizes, strict=True))
        grid, block = (
            [extents.get(f"{which}.{axis}", 1) for axis in "xyz"]
            for which in ("blockIdx", "threadIdx")
        )
        values = [
            self.buffers.table[_holder(argument)] if kind == "buffer" else self._number(argument)
            for kind, argument in zip(kinds, arguments, strict=False)
        ]
        if packed:
            # Blocks whose number is greater than the last one return.
            values.append(operation("-", grid[0], 1))
            deep = ceil_divided(grid[0], packed)
            least = operation("max", deep, 1)
            wide = operation("//", operation("+", grid[0], operation("-", least, 1)), least)
            grid = [wide, grid[1], deep]
        return {"launch": kernel.name, "arguments": values, "grid": grid, "block": block}


def _holder(data: Any) -> Any:
    """The buffer whose memory an expression is."""
    return data.args[0] if hasattr(data, "args") else data
