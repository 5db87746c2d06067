"""The dataflow blocks of a Relax function as bindings that a pass can take apart and reorder."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan.relax.calls import parts_of, uses_in
from tvm_scan.tir import VarMap, call_name, substitute


class Dataflow:
    """Bindings of one function; those outside of dataflow blocks are not offered."""

    def __init__(self, func: relax.Function) -> None:
        self._func = func
        self._uses = uses_in(func.body)
        self._blocks = [list(block.bindings) for block in func.body.blocks]
        self._values = VarMap()
        self._names = names = VarMap()
        for block, bindings in zip(func.body.blocks, self._blocks, strict=True):
            if isinstance(block, relax.DataflowBlock):
                for binding in bindings:
                    if not isinstance(binding, relax.VarBinding):
                        continue
                    value = substitute(binding.value, names)
                    self._values[binding.var] = (id(bindings), value)
                    if isinstance(value, relax.Var) and isinstance(binding.var, relax.DataflowVar):
                        # Another name for the same: its readers read what it names.
                        names[binding.var] = value
                        self._uses[value] = self.uses(value) + self.uses(binding.var) - 1
                        self.remove(binding.var)

    def calls(self) -> list[tuple[relax.Var, relax.Call]]:
        """Bindings of calls of functions of TensorIR, in order."""
        live = self._live()
        return [(var, value) for var, (_, value) in live if call_name(value) == "relax.call_tir"]

    def value(self, var: Any) -> relax.Expr | None:
        """The expression bound to a variable; None where that is not known or was removed."""
        numbered = self._values.get(var) if isinstance(var, relax.Var) else None
        return None if numbered is None else numbered[1]

    def uses(self, var: relax.Var) -> int:
        """Number of times that a variable is read."""
        count: int = self._uses.get(var, 0)
        return count

    def drop_use(self, var: relax.Expr) -> None:
        """Say that a variable is read once less."""
        if isinstance(var, relax.Var):
            self._uses[var] = self.uses(var) - 1

    def results(self, var: relax.Var, count: int) -> list[tuple[int, relax.Var]]:
        """Variables that alone hold one output of a call each, with its number."""
        if count == 1:
            return [(0, var)]
        items = [
            (int(value.index), item)
            for item, (_, value) in self._live()
            if isinstance(value, relax.TupleGetItem) and var.same_as(value.tuple_value)
        ]
        if self.uses(var) != len(items):
            return []  # someone takes the tuple as a whole
        numbers = [index for index, _ in items]
        return [(index, item) for index, item in items if numbers.count(index) == 1]

    def only_reader(self, var: relax.Var) -> relax.Var | None:
        """The binding that reads a variable, if there is one only, in the same block."""
        if self.uses(var) != 1:
            return None
        home = self._values[var][0]
        for other, (block, value) in self._live():
            if block == home and any(var.same_as(read) for read in _reads(value)):
                return other
        return None

    def depends(self, expr: relax.Expr, on: relax.Var) -> bool:
        """Return whether an expression is made from a variable."""
        todo, seen = [expr], VarMap()
        while todo:
            var = todo.pop()
            if not isinstance(var, relax.Var) or var in seen:
                continue
            if var.same_as(on):
                return True
            seen[var] = True
            value = self.value(var)
            if value is not None:
                todo += _reads(value)
        return False

    def remove(self, var: relax.Var) -> None:
        """Take a binding away."""
        self._values[var] = (None, None)

    def move(self, var: relax.Var, to: relax.Var) -> None:
        """Bind to `to` what was bound to `var`, which nobody else reads."""
        self._values[to] = self._values[var]
        self.remove(var)

    def replace(self, var: relax.Var, value: relax.Expr) -> None:
        """Bind a variable to something else."""
        self._values[var] = (self._values[var][0], value)

    def replace_tuple(self, var: relax.Var, value: relax.Expr, kind: relax.TupleType) -> None:
        """Replace a variable that is only taken apart by a value of another type."""
        renamed = relax.DataflowVar(var.name, kind)
        home, _ = self._values[var]
        for item, (_, old) in self._live():
            if isinstance(old, relax.TupleGetItem) and var.same_as(old.tuple_value):
                self.replace(item, relax.TupleGetItem(renamed, old.index))
        self.remove(var)
        self._values[renamed] = (home, value)

    def function(self) -> relax.Function:
        """The function as it is now, each binding behind what it reads."""
        blocks = []
        for block, bindings in zip(self._func.body.blocks, self._blocks, strict=True):
            if isinstance(block, relax.DataflowBlock):
                block = relax.DataflowBlock(self._sorted(bindings))
            blocks.append(block)
        body = relax.SeqExpr(blocks, self._func.body.body)
        return relax.Function(
            self._func.params, body, self._func.ret_ty, self._func.is_pure, self._func.attrs
        )

    def _live(self) -> list[tuple[relax.Var, tuple[int, relax.Expr]]]:
        return [(var, item) for var, item in self._values.items() if item[1] is not None]

    def _sorted(self, bindings: list[Any]) -> list[Any]:
        """Depth first from every binding in its old order: what it reads comes before it."""
        bound, done = VarMap((b.var, b) for b in bindings), VarMap()
        for var, (home, value) in self._live():
            if home == id(bindings) and var not in bound:
                bound[var] = relax.VarBinding(var, value)
        order: list[Any] = []

        def append(binding: Any) -> None:
            if binding.var in done:
                return
            done[binding.var] = True
            if isinstance(binding, relax.VarBinding):
                value = self.value(binding.var)
                if value is None:
                    return
                binding = relax.VarBinding(binding.var, value)
            else:
                value = substitute(binding.value, self._names)
                binding = relax.MatchCast(binding.var, value, binding.ty)
            for var in _reads(binding.value):
                if var in bound:
                    append(bound[var])
            order.append(binding)

        for binding in bindings:
            append(binding)
        return order


def _reads(value: relax.Expr) -> list[relax.Var]:
    return [part for part in parts_of(value) if isinstance(part, relax.Var)]
