"""``from_exported``: a program of ``torch.export`` as a Relax module, its recurrences as loops."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm.ir import IRModule

from tvm_scan.errors import ScanError
from tvm_scan.relax.import_torch.higher_order import convert_scan
from tvm_scan.relax.import_torch.operators import CONVERTERS
from tvm_scan.relax.import_torch.own_operators import OWN
from tvm_scan.relax.import_torch.roll import roll_loops
from tvm_scan.relax.import_torch.roll_collect import RolledLoop
from tvm_scan.relax.import_torch.while_loops import scans_from_while_loops
from tvm_scan.relax.repairs.torch_casts import Converter
from tvm_scan.relax.repairs.torch_importer import importer_class, unimported

_LOG = logging.getLogger("tvm_scan")

#: Whether each is a prefix scan of an operator.
_HIGHER_ORDER = {"scan": False, "associative_scan": True}


def from_exported(
    exported_program: Any,
    *,
    roll: bool = True,
    custom_convert_map: Mapping[str, Converter] | None = None,
    **options: Any,
) -> IRModule:
    """Import a program of ``torch.export`` with its recurrences as sequential loops.

    What TVM 0.27 does not import becomes loops that ``ParallelizeScans`` then schedules: the
    higher-order operators ``scan``, ``associative_scan`` and, where it counts through the steps of
    arrays, ``while_loop``; ``logcumsumexp``, ``cummax`` and
    ``cummin`` with indices; every operator of ``tvm_scan.torch``; ``cumsum`` and ``cumprod`` get
    torch's dtypes for integers.

    A loop that Python unrolled is rolled up again where its steps are exactly alike; what was
    rolled is logged to ``tvm_scan`` at INFO.

    Parameters
    ----------
    exported_program : torch.export.ExportedProgram
        The program; it is not changed.
    roll : bool
        Whether to roll up unrolled loops: those whose steps are collected by ``stack``, ``cat`` or
        ``y[:, t] = ...``, in either direction.
    custom_convert_map : mapping of str to callable, optional
        Converters of your own, as for TVM's importer; they come before ours. `loop_converter`
        makes one from a sequential loop.
    **options
        Passed to ``tvm.relax.frontend.torch.from_exported_program``.

    Returns
    -------
    IRModule
        For ``tvm.compile(mod, target, relax_pipeline=get_pipeline(target))``.

    Raises
    ------
    TypeError
        If it is no exported program.
    ScanError
        If operators of the program are known neither to TVM nor here, all of which are named, or
        one of them not for its operands.
    """
    import torch
    from torch.export import ExportedProgram, default_decompositions

    if not isinstance(exported_program, ExportedProgram):
        raise TypeError(
            "from_exported: expected a torch.export.ExportedProgram, got "
            f"{type(exported_program).__name__}; pass torch.export.export(model, args)"
        )
    with warnings.catch_warnings():
        # torch's own copy of a tree spec warns about itself.
        warnings.simplefilter("ignore", FutureWarning)
        program = exported_program
        rolled: list[Any] = []
        if roll:
            # Before the decomposition, which is slow on what is unrolled.
            program, rolled = _rolled(program)
        table = default_decompositions()
        # y[:, t] = ... is what a loop collects its steps by; TVM imports it as it is.
        table.pop(torch.ops.aten.select_scatter.default, None)
        program = _decomposed(program, table)
        if roll:
            # And after it, which has made writes into tensors functional.
            rolled += roll_loops(program.graph_module)
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    constants = {name: program.constants[key] for name, key in lifted.items()}
    scans_from_while_loops(program.graph_module, constants)
    for loop in rolled:
        _LOG.info("%s", loop)
    converters: dict[str, Converter] = {**CONVERTERS, **OWN}
    for name, prefix in _HIGHER_ORDER.items():
        # A step may use every converter, a nested loop too.
        converters[name] = partial(convert_scan, converters=converters, prefix=prefix)
    converters.update(custom_convert_map or {})
    importer = importer_class()(custom_convert_map or {})
    bound = {name: _bound(convert, importer) for name, convert in converters.items()}
    try:
        return importer.from_exported_program(
            program, *(options.pop(name, False) for name in _OPTIONS), bound, **options
        )
    except AssertionError as error:
        raise ScanError(
            "from_exported: expected operators that TVM or tvm_scan imports, got "
            f"{unimported(error)}; pass converters for these as custom_convert_map (loop_converter "
            "makes one from a loop)"
        ) from error


#: Of TVM's importer, in its order.
_OPTIONS = ("keep_params_as_input", "unwrap_unit_return_tuple", "no_bind_return_tuple")


def _bound(convert: Converter, importer: Any) -> Converter:
    """`convert` for TVM's importer, which names itself everywhere but in the branches of a cond."""

    def converted(node: Any, within: Any = importer) -> Any:
        return convert(node, within)

    return converted


def _decomposed(program: Any, table: Any) -> Any:
    try:
        return program.run_decompositions(table)
    except RuntimeError as error:
        if "FunctionalTensor" not in str(error):
            raise
        raise ScanError(
            "from_exported: expected a program that torch can decompose, got a higher-order "
            "operator whose function holds a tensor made outside of its arguments; pass it as an "
            "argument of the model, or make it a buffer"
        ) from error


def _rolled(program: Any) -> tuple[Any, list[RolledLoop]]:
    """A copy of the program with its loops rolled up; the program itself where there are none."""
    import torch

    module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.meta.update(program.graph_module.meta)
    rolled = roll_loops(module)
    if not rolled:
        return program, []
    copied = torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    return copied, rolled
