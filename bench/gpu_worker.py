"""A process for peers: one that crashes or hangs takes nobody with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.gpu_cases import Case
from bench.gpu_ours import Times

__all__ = ["Peers"]


class Peers:
    """Asks a process for the times of peers, and begins another one where it ended.

    Parameters
    ----------
    libraries : dict
        Of ``bench.gpu_native.build``.
    paths : list of str
        Where Python shall look for packages as well.
    arch : str
        Of the GPU, such as ``sm_90``.
    simulated : bool
        Whether it is the tests' simulated device.
    """

    def __init__(
        self,
        libraries: dict[str, Path | str],
        paths: list[str],
        arch: str,
        *,
        simulated: bool = False,
    ) -> None:
        self._libraries, self._paths, self._arch = libraries, paths, arch
        self._simulated = simulated
        self._process: Any = None
        self._connection: Connection | None = None
        #: Peers that crashed or took too long, and what became of them.
        self.lost: dict[tuple[str, str], str] = {}

    def names(self, family: str) -> list[str]:
        """Peers of a family of cases, those in CUDA first."""
        from bench import gpu_native, gpu_peers

        return [*gpu_native.PEERS.get(family, {}), *gpu_peers.PEERS.get(family, {})]

    def ask(self, case: Case, name: str, repeat: int, seconds: float) -> Times | str:
        """Time one peer.

        Parameters
        ----------
        case : Case
            What to run.
        name : str
            One of ``names``.
        repeat : int
            Calls.
        seconds : float
            When to give it up; its process is ended then.

        Returns
        -------
        Times or str
            Or why there are none.
        """
        lost = self.lost.get((case.family, name))
        if lost is not None:
            return lost
        answer = self._asked(("time", asdict(case), name, repeat), seconds)
        if isinstance(answer, dict):
            return Times(**answer)
        if not answer.startswith("no: "):
            self.lost[case.family, name] = answer
        return answer.removeprefix("no: ")

    def errors(self, case: Case, seconds: float) -> dict[str, float | str]:
        """Differences of the peers in CUDA from float64 at one case."""
        from bench import gpu_native

        found: dict[str, float | str] = {}
        for name in gpu_native.PEERS.get(case.family, {}):
            answer = self._asked(("error", asdict(case), name, 1), seconds)
            found[name] = answer if isinstance(answer, float) else answer.removeprefix("no: ")
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.is_alive():
            self._process.kill()
        if self._process is not None:
            self._process.join()
        self._process = self._connection = None

    def _asked(self, request: tuple[Any, ...], seconds: float) -> Any:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            libraries = {name: str(made) for name, made in self._libraries.items()}
            arguments = (theirs, libraries, self._paths, self._arch, self._simulated)
            self._process = context.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        connection = self._connection
        assert connection is not None
        try:
            connection.send(request)
            if connection.poll(max(0.0, seconds)):
                return connection.recv()
            why = f"not done in {seconds:.0f} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"its process ended with {self._process.exitcode}"
        self.close()
        return why


def _serve(
    connection: Connection,
    libraries: dict[str, str],
    paths: list[str],
    arch: str,
    simulated: bool,
) -> None:
    """Answer requests until the other side is gone."""
    sys.path[:0] = paths
    if simulated:
        from tests import cusim

        cusim.install()
    # What packages print while they compile is not for the table.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    held: dict[tuple[str, str], Any] = {}
    with contextlib.suppress(EOFError):
        while True:
            what, fields, name, repeat = connection.recv()
            case = Case(fields["family"], tuple(fields["sizes"]), fields["dtype"])
            try:
                answer = _answer(what, case, name, repeat, libraries, arch, held)
            except Exception as error:
                held.clear()
                answer = f"no: {type(error).__name__}: {str(error)[:200]}"
            connection.send(answer)


def _answer(
    what: str,
    case: Case,
    name: str,
    repeat: int,
    libraries: dict[str, str],
    arch: str,
    held: dict[tuple[str, str], Any],
) -> Any:
    from bench import gpu_native, gpu_peers

    native = gpu_native.PEERS.get(case.family, {}).get(name)
    if native is None:
        run = gpu_peers.PEERS[case.family][name]
        inputs = _held(held, "torch", case, lambda: gpu_peers.device_inputs(case))
        return asdict(run(case, inputs, repeat))
    import tvm
    from tvm.target import Target

    from bench.gpu_ours import device_tensors

    library, run = native
    file = libraries.get(library, "its source was not carried here: see bench.gpu_fetch")
    if not file.endswith(".so"):
        raise NotImplementedError(file)
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    target = Target({"kind": "cuda", "arch": arch, **limits}, host={"kind": "llvm"})
    if what == "error":
        return gpu_native.error_of(name, case, Path(file), tvm.cuda(0))
    tensors = _held(held, "tvm", case, lambda: device_tensors(case, target, tvm.cuda(0)))
    return asdict(run(case, tensors, ctypes.CDLL(file), repeat))


def _held(held: dict[tuple[str, str], Any], kind: str, case: Case, make: Any) -> Any:
    """The arrays of the case that is under way; those of another one, or of the other kind, go."""
    key = (kind, str(case))
    if key not in held:
        held.clear()
        if kind == "tvm" and "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()
        held[key] = make()
    return held[key]
