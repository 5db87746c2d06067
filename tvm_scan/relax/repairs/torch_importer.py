"""TVM 0.27's importer of exported programs, whose own errors do not name the operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping
from typing import Any

from tvm import relax

from tvm_scan.algebra.literal import is_float
from tvm_scan.errors import ScanError
from tvm_scan.relax.repairs.torch_casts import dtype_of

#: How an error begins that names the operators without a converter.
_UNSUPPORTED = "Unsupported function types"


def unimported(error: Exception) -> str:
    """Return the operators that an error of the importer names; raise one that is about else."""
    if not str(error).startswith(_UNSUPPORTED):
        raise error
    return str(error).removeprefix(_UNSUPPORTED).strip()


@functools.cache
def importer_class() -> type:
    """Return the class of importers; those of the functions inside of operators are of it, too."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    class Importer(ExportedProgramImporter):
        """TVM's importer, with errors that name the operator and the fix.

        `of_the_caller` are operators whose converters are the caller's: their errors are raised as
        they are.
        """

        def __init__(self, of_the_caller: Container[str] = ()) -> None:
            super().__init__()
            self.of_the_caller = of_the_caller
            self.update_convert_map(dict(self.convert_map))

        def update_convert_map(self, custom_convert_map: Mapping[str, Any]) -> None:
            """Add converters, or replace some."""
            super().update_convert_map(
                {
                    name: convert if name in self.of_the_caller else _named(convert, self)
                    for name, convert in custom_convert_map.items()
                }
            )

    return Importer


def _named(convert: Callable[..., Any], importer: Any) -> Callable[..., Any]:
    @functools.wraps(convert)
    def converted(node: Any, *within: Any) -> Any:
        try:
            result = convert(node, *within)
        except ScanError:
            raise
        except Exception as error:
            if str(error).startswith(_UNSUPPORTED):
                raise  # of a function inside of this operator
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise _unsupported(node, importer, lines[-1]) from error
        return _checked(node, result, importer)

    return converted


def _checked(node: Any, result: Any, importer: Any) -> Any:
    """Cast what was made to the dtype that torch says it has."""
    value = node.meta.get("val")
    if not hasattr(value, "dtype") or not isinstance(getattr(result, "ty", None), relax.TensorType):
        return result
    wanted, dtype = dtype_of(value), str(result.ty.dtype)
    if dtype == wanted or not dtype:
        return result
    if is_float(dtype) != is_float(wanted) or "bool" in (dtype, wanted):
        raise _unsupported(node, importer, f"it would be {dtype}, not {wanted}")
    return importer.block_builder.emit(relax.op.astype(result, wanted))


def _unsupported(node: Any, importer: Any, said: str) -> ScanError:
    kinds = [getattr(importer.env.get(n), "ty", None) for n in node.all_input_nodes]
    operands = ", ".join(
        f"{kind.dtype} of {kind.shape}" for kind in kinds if isinstance(kind, relax.TensorType)
    )
    return ScanError(
        f"from_exported: expected operators that TVM imports, got {node.target.__name__} of "
        f"{operands or 'no tensors'} ({said}); pass a converter for it as custom_convert_map "
        "(loop_converter makes one from a loop)"
    )
