"""Features of a candidate for the cost model: its kernel's stores, and its plan's costs.

TVM's per-store features see the expanded kernel, loop by loop, but not the chain of dependences
through time, nor barriers; the analytic costs say that. Neither shows whether lines are asked for
ahead or stored past the caches: that is in the plan's own decisions, which stand beside them, too.
"""

from __future__ import annotations

from dataclasses import fields
from math import log2

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_scan.meta.check import recurrences_of
from tvm_scan.meta.costs import Costs, costs_of
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.plan import ALGORITHMS, ScanPlan

__all__ = ["ScanFeatures", "decisions_of"]


def decisions_of(plan: ScanPlan) -> list[float]:
    """A plan as numbers: logarithms of its sizes, 0 or 1 for what is decided so or so.

    Parameters
    ----------
    plan : ScanPlan
        Any plan.

    Returns
    -------
    list of float
        As many for every plan.
    """
    sizes = [f.name for f in fields(plan) if isinstance(f.default, int)]
    shapes = [plan.algorithm == name for name in ALGORITHMS]
    trees = [plan.block_tree == name for name in ("blelloch", "kogge_stone", "warp")]
    return [log2(1 + int(getattr(plan, name))) for name in sizes] + [
        float(x) for x in shapes + trees
    ]


@derived_object
class ScanFeatures(ms.feature_extractor.PyFeatureExtractor):
    """One row for each store: TVM's features, ``Costs.vector`` of the plans, and their decisions.

    TVM takes up to a second for an unrolled kernel, and a population is asked about again and
    again, so what was extracted is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stores = ms.feature_extractor.PerStoreFeature()
        self.mod: tvm.IRModule | None = None
        self.known: dict[str, tvm.runtime.Tensor] = {}

    def extract_from(
        self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]
    ) -> list[tvm.runtime.Tensor]:
        """Return a matrix of ``(stores, features)`` for each candidate."""
        if self.mod is None or not self.mod.same_as(context.mod):
            self.mod, self.known = context.mod, {}
        named = [(str(candidate.sch.trace), candidate) for candidate in candidates]
        new = {name: candidate for name, candidate in named if name not in self.known}
        if new:
            self.known.update(zip(new, self._extract(context, list(new.values())), strict=True))
        return [self.known[name] for name, _ in named]

    def _extract(
        self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]
    ) -> list[tvm.runtime.Tensor]:
        found = recurrences_of(context.mod["main"])
        out = []
        for candidate, stores in zip(
            candidates, self.stores.extract_from(context, candidates), strict=True
        ):
            rows = stores.numpy()
            sch = Schedule(context.mod)
            candidate.sch.trace.apply_to_schedule(sch, remove_postproc=False)
            plans = [plan for _, plan in annotated_plans(sch)]
            ours = np.zeros(len(Costs.names()) + len(decisions_of(ScanPlan())))
            for plan, recurrence in zip(plans, found, strict=False):
                ours += costs_of(plan, context.target, recurrence).vector() + decisions_of(plan)
            if len(rows) == 0:
                rows = np.zeros((1, rows.shape[1] if rows.ndim == 2 else 0))
            wide = np.concatenate([rows, np.tile(ours, (len(rows), 1))], axis=1)
            out.append(tvm.runtime.tensor(wide.astype("float64")))
        return out
