"""Inputs of a loaded model, as tensors of TVM's runtime.

As ``artifact``, this module imports neither TVM nor its compiler.
"""

from __future__ import annotations

from typing import Any

DEVICE_TYPES = {"cpu": 1, "cuda": 2}
#: Bytes at multiples of which arrays begin that TVM allocates; its code counts on that.
_ALIGNMENT = 64


class ArtifactError(Exception):
    """An artifact that does not fit this machine, or a call that does not fit the artifact."""


def as_input(value: Any, entry: dict[str, Any], sizes: dict[str, int], device: str) -> Any:
    """The tensor that a value is; a copy where it is read-only or not aligned.

    Parameters
    ----------
    value : object
        Whatever a caller passed.
    entry : dict
        Name, shape and dtype of the input, of the manifest.
    sizes : dict of str to int
        Extents that the inputs before it have; its own are added.
    device : str
        The model's.

    Raises
    ------
    ArtifactError
        If it is no such tensor.
    """
    import tvm_ffi

    view = value if isinstance(value, tvm_ffi.Tensor) else _view(entry, value)
    _check_input(entry, view, sizes)
    _check_memory(entry, view, device)
    return _aligned(view)


def _view(entry: dict[str, Any], value: Any) -> Any:
    """The value as a tensor, without a copy where it may be written to."""
    import tvm_ffi

    def differs(found: str, fix: str) -> ArtifactError:
        extents = ", ".join(map(str, entry["shape"]))
        wanted = f"{entry['name']} as an array of {entry['dtype']} of shape ({extents})"
        return ArtifactError(f"run: expected {wanted}, got {found}; {fix}")

    kind = type(value).__name__
    if not hasattr(value, "__dlpack__"):
        raise differs("None" if value is None else kind, "pass a NumPy array or a torch tensor")
    if hasattr(value, "filled") and hasattr(value, "mask"):
        # DLPack knows no masks: what is masked would be computed with as if it were not.
        raise differs(f"a {kind}", "fill what is masked, with numpy.ma.filled(array, value)")
    if hasattr(value, "resolve_neg"):
        # torch may put a sign off, which is not in the memory that DLPack hands over.
        value = value.resolve_neg()
    try:
        if not getattr(getattr(value, "flags", None), "writeable", True):
            value = value.copy(order="K")
        return tvm_ffi.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        dtype = getattr(value, "dtype", "another dtype")
        raise differs(f"{kind} of {dtype} ({said})", "convert it") from error


def _check_memory(entry: dict[str, Any], tensor: Any, device: str) -> None:
    if tensor.device.dlpack_device_type() != DEVICE_TYPES[device]:
        raise ArtifactError(
            f"run: expected {entry['name']} on {device}, got it on {tensor.device}; move it there"
        )
    if not tensor.is_contiguous():
        raise ArtifactError(
            f"run: expected {entry['name']} contiguous, got strides {tuple(tensor.strides)}; copy "
            "it with numpy.ascontiguousarray or tensor.contiguous()"
        )


def _aligned(tensor: Any) -> Any:
    """The tensor, or a copy where compiled code would fault: it loads whole aligned vectors."""
    import tvm_ffi

    if tensor.numel() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    copied = allocate(tvm_ffi.Shape(tensor.shape), tensor.dtype, tensor.device, None)
    if tensor.numel():  # the strides of nothing may be anything, and those are checked
        tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, copied)
    return copied


def _check_input(entry: dict[str, Any], tensor: Any, sizes: dict[str, int]) -> None:
    shape, dtype = tuple(int(n) for n in tensor.shape), _dtype_of(tensor)
    wanted = [sizes.get(n, n) if isinstance(n, str) else n for n in entry["shape"]]
    fits = len(shape) == len(wanted) and all(
        isinstance(n, str) or n == size for n, size in zip(wanted, shape, strict=True)
    )
    if dtype != entry["dtype"] or not fits:
        extents = ", ".join(str(n) for n in wanted)
        raise ArtifactError(
            f"run: expected {entry['name']} as {entry['dtype']} of shape ({extents}), got {dtype} "
            f"of shape {shape}; convert it"
        )
    for extent, size in zip(entry["shape"], shape, strict=True):
        if isinstance(extent, str):
            sizes[extent] = size


def _dtype_of(tensor: Any) -> str:
    try:
        return str(tensor.dtype)
    except ValueError:  # a kind of numbers that TVM has not, such as complex ones
        return "another dtype"
