"""Loops of TensorIR as JavaScript: a page runs them without WebGPU, and checks by them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from tvm_scan import tir
from tvm_scan.browser.expressions import Expressions
from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch.numbers import number_of
from tvm_scan.schedules.launch.program import Array
from tvm_scan.text import as_text

#: Classes of arrays; those of floats are the caller's.
_ARRAYS = {
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "int16": "Int16Array",
    "uint16": "Uint16Array",
    "int8": "Int8Array",
    "uint8": "Uint8Array",
    "bool": "Uint8Array",
    "float16": "floats",
    "float32": "floats",
    "float64": "floats",
}


@dataclass(frozen=True)
class Loop:
    """A sequential function in JavaScript.

    Attributes
    ----------
    name : str
        Of the function.
    parameters : tuple of Array
        In the order of the function.
    text : str
        A method ``name(floats, [arrays], {sizes})``, where floats is the class of the arrays of
        floats that it makes.
    """

    name: str
    parameters: tuple[Array, ...]
    text: str


def loop_of(func: tirx.PrimFunc, name: str) -> Loop:
    """Write a sequential function as JavaScript.

    Parameters
    ----------
    func : tirx.PrimFunc
        Not scheduled: its loops run in order.
    name : str
        What to call it.

    Raises
    ------
    ScanError
        If it has a statement, an operation or a dtype that JavaScript has not.
    """
    return _Writer(func).loop(name)


def named_extents(func: tirx.PrimFunc) -> tir.VarMap:
    """Return the names of a function's symbolic extents; raise where a parameter is no array."""
    sizes = tir.VarMap()
    for param in func.params:
        if not hasattr(param.ty, "shape"):
            raise ScanError(
                f"a page: expected arrays as parameters, got the number {param.name}; make it an "
                "array of one cell, or a constant"
            )
        for extent in tir.shape_of(param):
            if isinstance(extent, tirx.Var):
                sizes[extent] = str(extent.name)
    return sizes


def module_of(loops: list[Loop]) -> str:
    """Write loops as a module of JavaScript, in one object by their names.

    Parameters
    ----------
    loops : list of Loop
        No two of one name.
    """
    body = ",\n\n".join(loop.text for loop in loops)
    return f"// The loops, as they were written.\nexport const loops = {{\n{body},\n}};\n"


class _Writer:
    """A function, statement by statement."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func, self.expressions = func, Expressions()
        self.names, self.sizes = self.expressions.names, named_extents(func)
        self.allocated: list[str] = []

    def loop(self, name: str) -> Loop:
        keys = ", ".join(
            f"{json.dumps(size)}: {self.names.add(var)}" for var, size in self.sizes.items()
        )
        arrays = []
        for parameter in self.func.params:
            self._class_of(parameter)
            shape = tuple(number_of(extent, self.sizes) for extent in tir.shape_of(parameter))
            arrays.append(Array(str(parameter.name), tir.dtype_of(parameter), shape))
        parameters = ", ".join(self.names.add(parameter) for parameter in self.func.params)
        body = self._lines(self.func.body)
        head = [f"{json.dumps(name)}(floats, [{parameters}], {{ {keys} }}) {{"]
        bound = [f"let {', '.join(self.expressions.bound)};"] if self.expressions.bound else []
        lines = [*head, *_indented([*self.allocated, *bound, *body]), "}"]
        return Loop(name, tuple(arrays), "\n".join(_indented(lines)))

    def _class_of(self, buffer: Any) -> str:
        dtype = tir.dtype_of(buffer)
        if dtype not in _ARRAYS:
            raise ScanError(
                f"a page: expected dtypes that its arrays have, got {dtype} for {buffer.name}; use "
                f"another one, of {', '.join(_ARRAYS)}"
            )
        return _ARRAYS[dtype]

    def _lines(self, stmt: Any) -> list[str]:
        match stmt:
            case tirx.SeqStmt():
                return [line for part in stmt.seq for line in self._lines(part)]
            case tirx.AttrStmt():
                return self._lines(stmt.body)
            case tirx.For():
                return self._for(stmt)
            case tirx.While():
                condition = self.expressions.value(stmt.condition)
                return [f"while ({condition}) {{", *_indented(self._lines(stmt.body)), "}"]
            case SBlockRealize():
                return self._block(stmt)
            case tirx.BufferStore():
                cell = self.expressions.cell(stmt.buffer, stmt.indices)
                return [f"{cell} = {self.expressions.value(stmt.value)};"]
            case tirx.Bind():
                value = self.expressions.value(stmt.value)
                return [f"const {self.names.add(stmt.var)} = {value};"]
            case tirx.IfThenElse():
                condition = self.expressions.value(stmt.condition)
                lines = self._if(condition, self._lines(stmt.then_case))
                if stmt.else_case is not None:
                    orelse = _indented(self._lines(stmt.else_case))
                    lines = [*lines[:-1], "} else {", *orelse, "}"]
                return lines
            case tirx.AllocBuffer():
                return self._allocate(stmt.buffer)
            case tirx.Evaluate() if tir.as_int(stmt.value) is not None:
                return []
        raise ScanError(
            f"a page: expected loops, conditions, bindings and stores, got {as_text(stmt)}; write "
            "the loop without it"
        )

    def _if(self, condition: str, lines: list[str]) -> list[str]:
        return [f"if ({condition}) {{", *_indented(lines), "}"]

    def _for(self, stmt: tirx.For) -> list[str]:
        begin, extent = (self.expressions.index(e) for e in (stmt.min, stmt.extent))
        end = extent if begin == "0" else f"{begin} + {extent}"
        name = self.names.add(stmt.loop_var)
        step = 1 if stmt.step is None else tir.as_int(stmt.step)
        more = f"{name}++" if step == 1 else f"{name} += {self.expressions.index(stmt.step)}"
        head = f"for (let {name} = {begin}; {name} < {end}; {more}) {{"
        return [head, *_indented(self._lines(stmt.body)), "}"]

    def _block(self, stmt: Any) -> list[str]:
        block = stmt.block
        if len(block.match_buffers):
            raise ScanError(
                "a page: expected buffers with storage of their own, got a match_buffer in block "
                f"{block.name_hint}; index the original buffer instead"
            )
        lines = [line for buffer in block.alloc_buffers for line in self._allocate(buffer)]
        first = []
        for axis, value in zip(block.iter_vars, stmt.iter_values, strict=True):
            bound = self.expressions.index(value)
            name = self.names.add(axis.var)
            lines.append(f"const {name} = {bound};")
            if int(axis.iter_type) == tirx.IterVar.CommReduce:
                first.append(f"{name} == {self.expressions.index(axis.dom.min)}")
        if block.init is not None:
            init = self._lines(block.init)
            lines += self._if(" && ".join(first), init) if first else init
        lines += self._lines(block.body)
        if not tir.is_true(stmt.predicate):
            return self._if(self.expressions.value(stmt.predicate), lines)
        # A block has a scope, but for one that binds nothing.
        return ["{", *_indented(lines), "}"] if len(block.iter_vars) else lines

    def _allocate(self, buffer: Any) -> list[str]:
        kind, shape = self._class_of(buffer), tir.shape_of(buffer)
        name = self.names.add(buffer)
        cells = " * ".join(self.expressions.index(extent) for extent in shape) or "1"
        line = f"const {name} = new {kind}({cells});"
        variables = [v for extent in shape for v in tir.variables(extent).keys()]
        if all(var in self.sizes for var in variables):
            self.allocated.append(line)  # once, and not in each step
            return []
        return [line]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
