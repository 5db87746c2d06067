"""Proofs by a solver that a scan is its loop: ``prove`` and the certificate that it gives.

z3 (``pip install z3-solver``) is imported at the first proof, and by nothing else.
"""

from __future__ import annotations

import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tvm_scan.errors import ScanError
from tvm_scan.proof.certificate import Certificate, GroupProof, Statement, Verdict

if TYPE_CHECKING:
    from tvm_scan.recurrence import Recurrence

__all__ = ["Certificate", "GroupProof", "MissingSolverError", "Statement", "Verdict", "prove"]


#: z3 has one context for all threads.
_LOCK = threading.Lock()


class MissingSolverError(ScanError):
    """A proof was asked for where z3 is not installed."""


def prove(recurrence: Recurrence, *, seconds: float = 5.0) -> Certificate:
    """Prove with a solver, for all inputs, that the scan of a recurrence is its loop.

    The extractor's step and the algebra's own formulas are translated, nothing else: integers to
    words of their width, floats to real numbers. ``docs/proof.md`` says what is proven, and what
    is assumed.

    Parameters
    ----------
    recurrence : Recurrence
        What ``extract`` found.
    seconds : float
        Work for each question, as seconds of a usual machine: the same work on every machine,
        whatever else it does. A question that needs more is undecided.

    Returns
    -------
    Certificate
        The statements, the solver's answers and their times; ``print`` shows it.

    Raises
    ------
    MissingSolverError
        If z3 is not installed.
    ScanError
        If given no recurrence.
    """
    from tvm_scan.recurrence import Recurrence

    if not isinstance(recurrence, Recurrence):
        raise ScanError(
            f"prove: expected a Recurrence, got {type(recurrence).__name__}; pass what "
            "tvm_scan.extract(func) returns where it is not a Refusal"
        )
    if find_spec("z3") is None:
        raise MissingSolverError(
            "prove: expected the solver z3, found none; run: python -m pip install z3-solver"
        )
    import z3

    from tvm_scan.proof.problem import problem_of
    from tvm_scan.proof.prover import prove_group

    begin = time.perf_counter()
    with _LOCK:
        problems = [problem_of(recurrence, group) for group in recurrence.groups]
        groups = tuple(prove_group(problem, seconds) for problem in problems)
    attrs: Any = recurrence.func.attrs or {}
    return Certificate(
        function=str(attrs.get("global_symbol", "main")),
        groups=groups,
        solver=f"z3 {z3.get_version_string()}",
        seconds=time.perf_counter() - begin,
    )
