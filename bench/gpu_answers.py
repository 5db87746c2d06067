"""What the process of ``bench.gpu_worker`` does: plans and peers, built, compared and timed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from bench import gpu_native
from bench.gpu_cases import Case
from bench.gpu_gelu import gelu_rows
from bench.gpu_ours import (
    Expected,
    Times,
    copied,
    device_tensors,
    error_of,
    target_of,
    timed,
)
from tvm_scan import ScanPlan

__all__ = ["Answers"]


class Answers:
    """One device and what is held on it between two questions.

    Parameters
    ----------
    libraries : dict
        Peers in CUDA: their files, or why there are none.
    arch : str
        Of the GPU, such as ``sm_90``.
    """

    def __init__(self, libraries: dict[str, str], arch: str) -> None:
        self.libraries, self.device = libraries, tvm.cuda(0)
        self.target = target_of(arch, str(self.device.device_name))
        self._held: dict[tuple[str, str], Any] = {}

    def forget(self) -> None:
        """Let go of all arrays."""
        self._held.clear()

    def device_works(self) -> bool:
        """Whether the device still takes work: after a failed kernel it does not."""
        try:
            self.device.sync()
            seven = tvm.runtime.tensor(np.full(8, 7, "float32"), self.device)
            return bool((seven.numpy() == 7).all())
        except Exception:
            return False

    def copy_rate(self, count: int, repeat: int) -> float:
        """Bytes per second, of a kernel or of ``cudaMemcpy``: the faster one is the ceiling."""
        rate = copied(self.target, self.device, count, repeat)
        file = self.libraries.get("peers", "")
        if file.endswith(".so"):
            rate = max(rate, gpu_native.copy_rate(Path(file), self.device, count, repeat))
        return rate

    def gelu_rows(self, count: int, repeat: int, copy: float) -> list[Any]:
        """The ladder of GELU."""
        self.forget()
        return gelu_rows(self.target, self.device, count, repeat, copy)

    def plan_error(self, case: Case, plan: ScanPlan | None) -> float:
        """Difference of a plan from float64."""
        exact = self._once("float64", case, lambda: Expected(case))
        return error_of(exact, plan, self.target, self.device)

    def plan_times(self, case: Case, plan: ScanPlan | None, repeat: int) -> Times:
        """Seconds of a call of a plan."""
        return timed(case, plan, self.target, self.device, repeat, self._tensors(case))

    def peer_error(self, case: Case, name: str) -> float:
        """Difference of a peer from float64."""
        exact = self._once("float64", case, lambda: Expected(case))
        if name in gpu_native.PEERS.get(case.family, {}):
            return gpu_native.error_of(name, exact, self._file(case, name), self.device)
        from bench import gpu_peers

        call = gpu_peers.PEERS[case.family][name](case, gpu_peers.device_inputs(case, exact.inputs))
        expected = next(iter(exact.outputs.values()))
        return gpu_peers.error_of(case, call, expected)

    def peer_times(self, case: Case, name: str, repeat: int) -> Times:
        """Seconds of a call of a peer."""
        native = gpu_native.PEERS.get(case.family, {}).get(name)
        if native is not None:
            file = self._file(case, name)
            return native[1](case, self._tensors(case), ctypes.CDLL(str(file)), repeat)
        from bench import gpu_peers

        inputs = self._once("torch", case, lambda: gpu_peers.device_inputs(case))
        return gpu_peers.times_of(gpu_peers.PEERS[case.family][name](case, inputs), repeat)

    def _file(self, case: Case, name: str) -> Path:
        library = gpu_native.PEERS[case.family][name][0]
        file = self.libraries.get(library, "its source was not carried here: see bench.gpu_fetch")
        if not file.endswith(".so"):
            raise NotImplementedError(file)
        return Path(file)

    def _tensors(self, case: Case) -> list[Any]:
        return self._once("tvm", case, lambda: device_tensors(case, self.target, self.device))

    def _once(self, kind: str, case: Case, make: Callable[[], Any]) -> Any:
        """What is held for the case that is under way; of another one, or another kind, it goes."""
        key = (kind, str(case))
        if key not in self._held:
            self.forget()
            if kind != "torch" and "torch" in sys.modules:
                sys.modules["torch"].cuda.empty_cache()
            self._held[key] = make()
        return self._held[key]
