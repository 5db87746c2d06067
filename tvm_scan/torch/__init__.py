"""PyTorch: compiled recurrences called with torch tensors, without copies."""

from tvm_scan._guard import ensure_compatible

ensure_compatible()

from tvm_scan.torch.call import CompiledScan, compile  # noqa: E402

__all__ = ["CompiledScan", "compile"]
