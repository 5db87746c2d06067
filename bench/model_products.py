"""Matrix products of a model by NumPy's BLAS, so that a table of models shows the rest.

TVM's wheel has no BLAS, and its default CPU pipeline leaves products as three plain loops: at real
sizes they would be nearly all of the run time, with tvm_scan and without.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["NAME", "products_by_blas"]

#: Name of the packed function.
NAME = "bench.matmul"


@tvm.register_global_func(NAME, override=True)
def _matmul(left: tvm.runtime.Tensor, right: tvm.runtime.Tensor, out: tvm.runtime.Tensor) -> None:
    np.matmul(np.from_dlpack(left), np.from_dlpack(right), out=np.from_dlpack(out))


@mutator
class _Products(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != Op.get("relax.matmul") or str(call.ty.dtype) not in ("float32", "float64"):
            return call
        return relax.call_dps_packed(NAME, list(call.args), call.ty)


def products_by_blas(mod: IRModule) -> IRModule:
    """``mod`` with a call of NumPy for every matrix product of floats.

    Parameters
    ----------
    mod : IRModule
        As imported; every shape known.

    Returns
    -------
    IRModule
    """
    visitor = _Products(mod)
    for name, func in mod.functions_items():
        if isinstance(func, relax.Function):
            visitor.builder_.update_func(name, visitor.visit_expr(func))
    return visitor.builder_.get()
