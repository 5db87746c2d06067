"""Converters for torch's cumulative operators, and for operators that a user registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.filter_arguments import check_filters
from tvm_scan.loops import lfilter
from tvm_scan.relax.calls import call_loop, constant_extent
from tvm_scan.relax.import_torch.cumulative import emit_extremum, emit_log_sum_exp
from tvm_scan.relax.import_torch.own_arguments import sizes_of
from tvm_scan.relax.repairs.torch_casts import Converter, dtype_of
from tvm_scan.relax.repairs.torch_convolutions import CONVOLUTIONS, convert_convolution
from tvm_scan.relax.repairs.torch_dtypes import DTYPES
from tvm_scan.relax.repairs.torch_elementwise import ELEMENTWISE
from tvm_scan.relax.repairs.torch_parts import PARTS
from tvm_scan.relax.repairs.torch_products import PRODUCTS


def _cumulative(operator: Callable[..., relax.Expr]) -> Converter:
    def convert(node: Any, importer: Any) -> relax.Expr:
        x = importer.env[node.args[0]]
        # torch sums integers in int64 unless told otherwise; TVM's importer keeps their dtype.
        dtype = dtype_of(node.meta["val"])
        builder = importer.block_builder
        if not x.ty.shape.values:
            return builder.emit(relax.op.astype(x, dtype))
        return builder.emit(operator(x, int(node.args[1]), dtype))

    return convert


def _logcumsumexp(node: Any, importer: Any) -> relax.Expr:
    return emit_log_sum_exp(importer.block_builder, importer.env[node.args[0]], int(node.args[1]))


def _extremum(smallest: bool) -> Converter:
    def convert(node: Any, importer: Any) -> list[relax.Expr]:
        x, axis = importer.env[node.args[0]], int(node.args[1])
        return emit_extremum(importer.block_builder, x, axis, smallest=smallest)

    return convert


def _lfilter(node: Any, importer: Any) -> relax.Expr:
    """``tvm_scan::lfilter``, whose module need not be imported."""
    args = [importer.env[n] for n in node.args]
    try:
        waveform, a, b = ([tir.as_int(n) for n in arg.ty.shape.values] for arg in args)
        check_filters(waveform, a, b, [str(arg.ty.dtype) for arg in args])
    except ValueError as error:  # which the importer would take for an operator that is missing
        raise ScanError(str(error)) from error
    extents = sizes_of(args[0], ("n", "c", "length"))
    taps = constant_extent(args[1], 1, "lfilter", "taps")
    loop = lfilter(*extents, taps=taps, dtype=str(args[0].ty.dtype))
    return call_loop(importer.block_builder, loop, args, "lfilter")[0]


#: Converters by the name of the overload, for ``custom_convert_map`` of TVM's importer.
CONVERTERS: dict[str, Converter] = {
    **DTYPES,
    **ELEMENTWISE,
    **PARTS,
    **PRODUCTS,
    **dict.fromkeys(CONVOLUTIONS, convert_convolution),
    "cumsum.default": _cumulative(relax.op.cumsum),
    "cumprod.default": _cumulative(relax.op.cumprod),
    "logcumsumexp.default": _logcumsumexp,
    "cummax.default": _extremum(smallest=False),
    "cummin.default": _extremum(smallest=True),
    "lfilter.default": _lfilter,
}


def loop_converter(make: Callable[..., tirx.PrimFunc], name: str = "loop") -> Converter:
    """Make a converter for a custom operator from its sequential loop.

    Parameters
    ----------
    make : callable
        Given the types (``relax.TensorType``) of the operator's tensors and its other arguments
        by position and name, as the operator gets them, gives a function of TensorIR whose
        parameters are the tensors, then the results.
    name : str
        Name of the function in the module.

    Returns
    -------
    callable
        For ``custom_convert_map`` of ``from_exported``; the key is the overload's name, such as
        ``"linrec.default"`` of an operator ``mylib::linrec``.

    Raises
    ------
    Exception
        When a program is imported: what `make` raises.
    """

    def convert(node: Any, importer: Any) -> Any:
        def resolved(value: Any) -> Any:
            return importer.env[value] if hasattr(value, "op") else value

        def described(value: Any) -> Any:
            return value.ty if isinstance(value, relax.Expr) else value

        args = [resolved(value) for value in node.args]
        named = {key: resolved(value) for key, value in node.kwargs.items()}
        types = {key: described(value) for key, value in named.items()}
        loop = make(*map(described, args), **types)
        tensors = [v for v in (*args, *named.values()) if isinstance(v, relax.Expr)]
        results = call_loop(importer.block_builder, loop, tensors, name)
        return results[0] if len(results) == 1 else results

    return convert
