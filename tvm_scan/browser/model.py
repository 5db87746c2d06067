"""Models of Relax: their operators as kernels and as loops, called in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst, IRModule
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.browser.content import Content, Operand, rounding
from tvm_scan.browser.loops import loop_of
from tvm_scan.browser.values import OTHERS, Span
from tvm_scan.errors import ScanError
from tvm_scan.relax.findings import FindScans
from tvm_scan.relax.operators import LegalizeScans
from tvm_scan.relax.pipeline import scheduled_operators
from tvm_scan.relax.repairs.dtypes import RepairOperators
from tvm_scan.schedules.launch.numbers import number_of
from tvm_scan.schedules.launch.program import Array, Names, Step, emit
from tvm_scan.schedules.verification.inputs import STEPS

_ENTRY = "main"
#: A path through nested tuples to a tensor.
_Value = str | list[Any]


def of_model(mod: IRModule, target: Target, database: Any, name: str) -> Content:
    """Return the content of a page for a model.

    Parameters
    ----------
    mod : IRModule
        A Relax module with a function ``main``, as imported.
    target : tvm.target.Target
        What its kernels are for.
    database : Database or None
        Tuning records.
    name : str
        Of the page.

    Returns
    -------
    Content
        Its loops are those of the operators one by one, neither fused nor scheduled.

    Raises
    ------
    ScanError
        If it has no ``main``, or something that is not a call of a function of TensorIR.
    """
    if _ENTRY not in [str(v.name_hint) for v in mod.get_global_vars()]:
        raise ScanError(
            f"a page: expected a module with a function {_ENTRY}, found none; name it so"
        )
    scheduled = scheduled_operators(mod, target, database)
    plain = LegalizeScans()(RepairOperators()(mod))
    reports = FindScans(plain)
    plain = relax.transform.LegalizeOps()(plain)
    constants: dict[str, np.ndarray] = {}
    kernels, loops = _Graph(scheduled, constants), _Graph(plain, constants)
    accepted = [loop for report in reports for loop in report.accepted]
    extents = [loop.time.extent for loop in accepted]
    times = [number for extent in extents if (number := tir.as_int(extent)) is not None]
    sizes = dict.fromkeys(kernels.sizes, OTHERS)
    length = next(iter(sizes), None) if len(times) < len(extents) else None
    if length is not None:
        sizes[length] = STEPS
    steps = max(times, default=STEPS)
    limits = _limits(plain, loops)
    arrays = [Operand(array, True, False, _span(array, limits)) for array in kernels.inputs]
    arrays += [Operand(array, False, True, None, _bound(array, steps)) for array in kernels.outputs]
    arrays += [
        Operand(Array(key, str(value.dtype), value.shape), True, False, constant=value)
        for key, value in constants.items()
    ]
    families = [str(name) for loop in accepted for _, name, *_ in loop.families]
    return Content(
        name,
        sizes,
        steps if length is None else length,
        length,
        steps,
        arrays,
        {key: emit(scheduled[key], target, key) for key in kernels.called},
        {key: loop_of(plain[key], key) for key in loops.called},
        kernels.steps,
        loops.steps,
        list(dict.fromkeys(families)),
    )


def _bound(array: Array, steps: int) -> float:
    return rounding(steps) if is_float(array.dtype) else 0.0


def _span(array: Array, limits: dict[str, int]) -> Span:
    if is_float(array.dtype):
        return -1.0, 1.0
    return 0, limits.get(array.name, 2)


def _limits(mod: IRModule, graph: _Graph) -> dict[str, int]:
    """Return what inputs must stay below that are indices, by the arrays read with them."""
    limits: dict[str, int] = {}
    for step in graph.steps:
        if "call" not in step:
            continue
        func = mod[step["call"]]
        names = dict(zip((str(p.name) for p in func.params), step["arguments"], strict=True))
        for load in tir.loads(func.body):
            for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
                size = tir.as_int(extent)
                for inner in tir.loads(index):
                    name = names.get(str(inner.source.name))
                    if name is not None and size is not None:
                        limits[name] = min(size, limits.get(name, size))
    return limits


class _Graph:
    """The function ``main`` of a module whose operators are functions of TensorIR.

    Attributes
    ----------
    inputs, outputs : list of Array
        Of the model.
    sizes : list of str
        Its symbolic extents.
    called : list of str
        Functions, in the order of their first call.
    steps : list of Step
        What is done, in order.
    """

    def __init__(self, mod: IRModule, constants: dict[str, np.ndarray]) -> None:
        self.constants = constants
        self.names, self.numbers = Names(), Names()
        self.values = tir.VarMap()
        self.called: list[str] = []
        self.steps: list[Step] = []
        func = mod[_ENTRY]
        self.inputs = [self._input(param) for param in func.params]
        self.sizes = [name for _, name in self.numbers.table.items()]
        blocks = func.body.blocks if isinstance(func.body, relax.SeqExpr) else []
        for binding in (binding for block in blocks for binding in block.bindings):
            var, value = binding.var, binding.value
            is_call = isinstance(value, relax.Call)
            self.values[var] = self._call(var, value) if is_call else self._value(value)
        result = func.body.body if isinstance(func.body, relax.SeqExpr) else func.body
        self.outputs = self._rename_outputs(_flat(self._value(result)))

    def _array(self, name: str, kind: Any) -> Array:
        if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
            raise ScanError(
                f"a page: expected tensors of known rank in a model, got {name}: {kind}; make each "
                "tensor an input of its own"
            )
        shape = tuple(number_of(extent, self.numbers.table) for extent in kind.shape.values)
        return Array(name, str(kind.dtype), shape)

    def _input(self, param: Any) -> Array:
        kind = param.ty
        if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
            for extent in kind.shape.values:
                if isinstance(extent, tirx.Var) and extent not in self.numbers.table:
                    self.numbers.add(extent)
        name = self.names.add(param)
        self.values[param] = name
        return self._array(name, kind)

    def _value(self, value: Any) -> _Value:
        if isinstance(value, relax.Tuple):
            return [self._value(field) for field in value.fields]
        if isinstance(value, relax.TupleGetItem):
            return self._value(value.tuple_value)[int(value.index)]
        if isinstance(value, GenericConst):
            return self._constant(np.ascontiguousarray(value.value.numpy()))
        if isinstance(value, relax.Var) and value in self.values:
            known: _Value = self.values[value]
            return known
        raise _unknown(value)

    def _constant(self, array: np.ndarray) -> str:
        """Name of a constant; the same for both graphs."""
        for name, other in self.constants.items():
            same = (other.dtype, other.shape) == (array.dtype, array.shape)
            if same and other.tobytes() == array.tobytes():
                return name
        name = f"constant{len(self.constants)}"
        self.constants[name] = array
        return name

    def _call(self, var: Any, call: Any) -> _Value:
        if tir.call_name(call) != "relax.call_tir" or len(call.args) > 2:
            raise _unknown(call)
        name = str(call.args[0].name_hint)
        if name not in self.called:
            self.called.append(name)
        inputs = _flat(self._value(call.args[1]))
        kinds = var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]
        outputs = []
        for kind in kinds:
            array = self._array(self.names.add_as(var, str(var.name)), kind)
            outputs.append(array.name)
            step = {"allocate": array.name, "dtype": array.dtype, "shape": list(array.shape)}
            self.steps.append(step)
        self.steps.append({"call": name, "arguments": [*inputs, *outputs]})
        return list(outputs) if isinstance(var.ty, relax.TupleType) else outputs[0]

    def _rename_outputs(self, results: list[str]) -> list[Array]:
        """Let the arrays of outputs be there before the first step, under names of their own."""
        arrays = []
        for i, result in enumerate(results):
            step = next((s for s in self.steps if s.get("allocate") == result), None)
            if step is None:
                raise ScanError(
                    "a page: expected outputs of a model that it computes, each once, got an input "
                    "or a constant; leave it out of the outputs"
                )
            self.steps.remove(step)
            name = "output" if len(results) == 1 else f"output_{i}"
            arrays.append(Array(name, step["dtype"], tuple(step["shape"])))
            for other in self.steps:
                if "call" in other:
                    other["arguments"] = [name if a == result else a for a in other["arguments"]]
        return arrays


def _flat(value: _Value) -> list[str]:
    return [value] if isinstance(value, str) else [name for part in value for name in _flat(part)]


def _unknown(value: Any) -> ScanError:
    return ScanError(
        f"a page: expected calls of functions of TensorIR in a model, got {value}; TVM has no "
        "kernel of it for a browser, write it by other operators"
    )
