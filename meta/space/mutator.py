"""The mutator: one decision of a plan moves to the value beside it."""

from __future__ import annotations

import random
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_scan import tir
from tvm_scan.annotations import PLAN_PREFIX


def plan_samples(trace: Trace) -> list[tuple[Any, int, int]]:
    """Sampling instructions that feed a plan, each with its choice and its number of values.

    Parameters
    ----------
    trace : Trace
        Of a schedule that ``ScanRule`` sampled.
    """
    ours = [
        inst.inputs[1]
        for inst in trace.insts
        if str(inst.kind.name) == "Annotate"
        and str(inst.attrs[0]).startswith(PLAN_PREFIX)
        and len(inst.inputs) > 1
    ]
    samples = []
    for inst in trace.insts:
        if str(inst.kind.name) != "SampleCategorical":
            continue
        value = inst.outputs[0]
        if any(value.same_as(other) for other in ours if hasattr(other, "same_as")):
            decision = trace.get_decision(inst)
            if decision is not None:
                samples.append((inst, tir.as_int(decision) or 0, len(inst.attrs[0])))
    return samples


@derived_object
class NeighbourMutator(ms.mutator.PyMutator):
    """Doubles or halves a tile, the items of a thread, the chunks: one value up or down.

    The values of a decision are in ascending order, and neighbours perform alike; so a step
    from a good plan is worth more than a fresh draw.

    Parameters
    ----------
    seed : int
        Of the moves; every clone draws its own sequence from it.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.random = random.Random(seed)

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        pass

    def apply(self, trace: Trace, _state: int) -> Trace | None:
        """Return the mutated trace, or None where there is nothing to move."""
        moves = [
            (inst, choice + step)
            for inst, choice, count in plan_samples(trace)
            for step in (-1, 1)
            if 0 <= choice + step < count
        ]
        if not moves:
            return None
        inst, choice = self.random.choice(moves)
        return trace.with_decision(inst, choice, remove_postproc=True)

    def clone(self) -> NeighbourMutator:
        """A mutator of its own for another thread."""
        return NeighbourMutator(self.random.randrange(1 << 30))
