"""The key of a recurrence, apart from its sizes: the name under which plans are looked up.

Two recurrences have the same key if their steps are the same program once extents, names, source
positions and the width of index arithmetic are left out. A key decides which plan is tried, never
whether it is right: every plan is legal for every recurrence that passes ``ScanPlan.check``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import tvm_ffi

from tvm_scan.delta_rule import TimeLoop

#: Bump where the text of a key changes, so that old keys find nothing.
_VERSION = 1
#: Constants of indices up to this size are offsets; larger ones come from an extent.
_OFFSET = 2
_SKIPPED = ("span", "layout", "allocated_addr", "data_alignment", "offset_factor", "shape")
_COMPARISONS = ("prim.EQ", "prim.NE", "prim.LT", "prim.LE", "prim.GT", "prim.GE")
_SIZE = "n"


def shape_key(recurrence: TimeLoop) -> str:
    """Name of a recurrence without its extents.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        Its lane and time extents do not count; those of its state do.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    axes, parts = recurrence.axes, recurrence.parts
    root = tvm_ffi.convert([*(axis.var for axis in axes), *(p for p in parts if p is not None)])
    shape = [part is not None for part in parts]
    text = f"{_VERSION} {len(axes)} {recurrence.families} {shape} {_Writer(root, len(axes)).text()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Writer:
    """Text of statements, from the graph that TVM serialises."""

    def __init__(self, root: Any, axes: int) -> None:
        graph = json.loads(tvm_ffi.serialization.to_json_graph_str(root))
        self.nodes = graph["nodes"]
        items = self.nodes[graph["root_index"]]["data"]
        self.names = {item: f"axis{i}" for i, item in enumerate(items[:axes])}
        self.parts = items[axes:]
        for node in self.nodes:
            if node["type"] == "tirx.For":
                self._name(node["data"]["loop_var"])
            elif node["type"] == "tirx.Bind":
                self._name(node["data"]["var"])

    def _name(self, number: int) -> str:
        return self.names.setdefault(number, f"v{len(self.names)}")

    def text(self) -> str:
        return " ; ".join(self._write(part) for part in self.parts)

    def _write(self, number: int) -> str:
        kind, data = self.nodes[number]["type"], self.nodes[number].get("data")
        if kind == "ir.Var":
            return self._variable(number)
        if kind in ("ir.TensorLoad", "tirx.BufferStore"):
            indices = self.nodes[data["indices"]]["data"]
            inside = ", ".join(self._index(i) for i in indices)
            rest = [self._write(data[k]) for k in ("source", "buffer", "value") if k in data]
            return f"{kind}({' '.join(rest)} [{inside}])"
        if kind in _COMPARISONS and self._is_index(data["a"]):
            return f"{kind}({self._index(data['a'])}, {self._index(data['b'])})"
        if kind == "ir.IntImm":
            return f"{self._dtype(data)}({self._value(data)})"
        if isinstance(data, dict):
            named = {k: v for k, v in data.items() if k not in _SKIPPED}
            return f"{kind}({', '.join(f'{k}={self._field(v)}' for k, v in named.items())})"
        if isinstance(data, list):
            return f"[{', '.join(self._field(v) for v in data)}]"
        return f"{kind}:{data}"

    def _field(self, value: Any) -> str:
        # In this graph a field that is an integer is the number of a node.
        return self._write(value) if isinstance(value, int) else str(value)

    def _variable(self, number: int) -> str:
        data = self.nodes[number]["data"]
        kind = self.nodes[data["ty"]]
        if kind["type"] != "tirx.BufferType":
            return self.names.get(number, _SIZE)
        name = self._name(number)
        rank = len(self.nodes[kind["data"]["shape"]]["data"])
        scope = self.nodes[kind["data"]["storage_scope"]]["data"]
        return f"{name}:{self._dtype_at(kind['data']['dtype'])}:{rank}:{scope}"

    def _dtype(self, data: dict[str, Any]) -> str:
        return self._dtype_at(data["ty"])

    def _dtype_at(self, number: int) -> str:
        data = self.nodes[number].get("data")
        return str(data.get("dtype", "?")) if isinstance(data, dict) else str(data)

    def _value(self, data: dict[str, Any]) -> int:
        return int(self.nodes[data["value"]]["data"])

    def _is_index(self, number: int) -> bool:
        data = self.nodes[number].get("data")
        if not isinstance(data, dict) or self.nodes[number]["type"] == "ir.TensorLoad":
            return False
        return "ty" in data and self._dtype_at(data["ty"]) in ("int32", "int64")

    # ---- indices ----------------------------------------------------------------------------

    def _index(self, number: int) -> str:
        """An index as a sum; sizes and the offsets that come from them are all alike."""
        terms = self._linear(number)
        constant = terms.pop("", 0)
        if constant != _SIZE and abs(int(constant)) > _OFFSET:
            constant = _SIZE
        shown = [f"{self._coefficient(terms[k])}*{k}" for k in sorted(terms) if terms[k] != 0]
        return " + ".join([*shown, str(constant)])

    @staticmethod
    def _coefficient(value: int | str) -> str:
        return str(value) if value == _SIZE or abs(int(value)) <= _OFFSET else _SIZE

    def _linear(self, number: int) -> dict[str, int | str]:
        kind, data = self.nodes[number]["type"], self.nodes[number].get("data")
        if kind == "ir.IntImm":
            return {"": self._value(data)}
        if kind == "ir.Var" and self._variable(number) == _SIZE:
            return {"": _SIZE}
        if kind == "ir.Call" and self._is_index(number):
            inner = [i for i in self.nodes[data["args"]]["data"] if isinstance(i, int)]
            if len(inner) == 1:
                return self._linear(inner[0])
        if kind in ("tirx.Cast", "prim.Cast", "ir.Cast"):
            return self._linear(data["value"])
        if kind in ("prim.Add", "prim.Sub"):
            left, right = self._linear(data["a"]), self._linear(data["b"])
            sign = 1 if kind == "prim.Add" else -1
            for name, value in right.items():
                left[name] = _plus(left.get(name, 0), _times(sign, value))
            return left
        if kind == "prim.Mul":
            left, right = self._linear(data["a"]), self._linear(data["b"])
            for side, other in ((left, right), (right, left)):
                if set(side) == {""}:
                    return {name: _times(side[""], value) for name, value in other.items()}
        return {self._write(number): 1}


def _plus(left: int | str, right: int | str) -> int | str:
    return _SIZE if _SIZE in (left, right) else int(left) + int(right)


def _times(left: int | str, right: int | str) -> int | str:
    if 0 in (left, right):
        return 0
    if _SIZE in (left, right):
        return _SIZE
    return int(left) * int(right)
