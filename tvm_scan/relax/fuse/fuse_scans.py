"""``FuseScans``: elementwise producers and consumers become part of the scan between them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar, IRModule
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.annotations import DECLARED, IS_SCHEDULED
from tvm_scan.arguments import as_target
from tvm_scan.errors import PlanError
from tvm_scan.meta.store.arguments import as_database
from tvm_scan.meta.store.replay import replay
from tvm_scan.recurrence import Recurrence
from tvm_scan.relax.calls import global_vars
from tvm_scan.relax.fuse.dataflow import Dataflow
from tvm_scan.relax.fuse.merge import with_consumer, with_producer
from tvm_scan.relax.fuse.neighbours import (
    Neighbour,
    Neighbours,
    is_small,
    largest,
    position,
    same_var,
)
from tvm_scan.schedules import ScanPlan, parallelize
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.default import decide

_LOG = logging.getLogger("tvm_scan")
#: Steps of all lanes up to which fusing into a sequential loop pays for the call it saves; longer
#: ones are up to 9 % faster behind an elementwise loop of its own, which has vectors.
_SEQUENTIAL_WORK = 1 << 10
#: By what a plan in parallel may take longer than the loop before neighbours are taken in.
_BY_LITTLE = 1.5


@dataclass(eq=False)
class _Scan:
    """A call of a function with one recurrence, and what it has become."""

    var: relax.Var
    name: str
    func: tirx.PrimFunc
    args: list[relax.Expr]
    types: list[relax.TensorType]
    plan: ScanPlan
    #: The type of the largest array that it read before anything was fused.
    largest: relax.TensorType
    taken: list[str]
    #: Whether it is a tuple of other types than it was, which is only taken apart.
    retyped: bool = False


def FuseScans(target: Target | str | None = None, database: Any = None) -> tvm.ir.transform.Pass:
    """Compute elementwise producers and consumers of a scan inside of it.

    An input that an elementwise operator makes (broadcasts, casts, gates, activations) is
    computed where a step reads it, and an output that only an elementwise operator reads is never
    stored: one pass over memory instead of several. An operator of a dataflow block is fused if it
    has no other reader, and the result is provably still the same recurrence with a plan of the
    same kind; everything else stays as it is. What was fused is logged to ``tvm_scan`` at INFO.

    Put it between ``LegalizeScans`` and ``ParallelizeScans``.

    Parameters
    ----------
    target : tvm.target.Target or str, optional
        The current target, else this machine's CPU.
    database : RecordStore, tvm.s_tir.meta_schedule.Database or path, optional
        A function that has a record in it is left as it is, as it was tuned.

    Returns
    -------
    Pass
        A module pass.

    Raises
    ------
    ScanError
        If the target is none that scans are scheduled for, or the database is none.
    """
    name = "FuseScans"
    target, database = as_target(target, name), as_database(database, name)

    @tvm.ir.transform.module_pass(opt_level=0, name="FuseScans")
    def run(mod: IRModule, _context: Any) -> IRModule:
        fuser = _Fuser(mod, target or Target.current(allow_none=True), database)
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                fuser.rewrite(name, func)
        return fuser.finished()

    return run


class _Fuser:
    def __init__(self, mod: IRModule, target: Target | None, database: Any) -> None:
        self.mod, self.target, self.database = mod, target, database
        self.builder: relax.BlockBuilder | None = None
        self.replaced: set[str] = set()
        self.fused: dict[str, tirx.PrimFunc] = {}
        self.plans: dict[int, list[tuple[tirx.PrimFunc, ScanPlan | None]]] = {}
        self.neighbours = Neighbours(mod, self.fused)

    def rewrite(self, name: GlobalVar, func: relax.Function) -> None:
        """Fuse what one Relax function calls."""
        if not isinstance(func.body, relax.SeqExpr):
            return
        flow = Dataflow(func)
        fused = False
        for var, call in flow.calls():
            scan = None if flow.value(var) is None else self._scan(var, call)
            if scan is None:
                continue
            while self._take_producer(flow, scan) or self._take_consumer(flow, scan):
                pass
            if scan.taken:
                self._commit(flow, scan)
                fused = True
        if fused and self.builder is not None:
            self.builder.update_func(name, flow.function())

    def finished(self) -> IRModule:
        """The module, without the functions that nobody calls any more."""
        if self.builder is None:
            return self.mod
        mod = self.builder.get()
        used = {str(g.name_hint) for g in global_vars(mod)}
        functions = {}
        for name, func in mod.functions_items():
            if name.name_hint in self.replaced and name.name_hint not in used:
                if not (func.attrs and "global_symbol" in func.attrs):
                    continue
                # Someone may call it by its name; later passes look at what Relax calls only.
                func = parallelize(func, self.target)
            functions[name] = func
        module = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return relax.transform.Normalize()(module)

    # ---- what is fused --------------------------------------------------------------------

    def _scan(self, var: relax.Var, call: relax.Call) -> _Scan | None:
        callee, func = call.args[0], self.neighbours.function(call)
        if func is None or (func.attrs or {}).get(IS_SCHEDULED, False):
            return None
        plan = self._plan(func)
        if plan is None or (plan.keeps_loop and self._work(func) > _SEQUENTIAL_WORK):
            return None
        if self._is_tuned(func):
            return None
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        args = list(call.args[1].fields)
        whole = largest([*(arg.ty for arg in args), *types])
        return _Scan(var, str(callee.name_hint), func, args, types, plan, whole, [])

    def _is_tuned(self, func: tirx.PrimFunc) -> bool:
        if self.database is None or self.target is None:
            return False
        return replay(self.database, func, self.target) is not None

    def _plan(self, func: tirx.PrimFunc) -> ScanPlan | None:
        """The plan of the only recurrence of a function; layers of a model share theirs."""
        known = self.plans.setdefault(int(tvm_ffi.structural_hash(func)), [])
        for other, plan in known:
            if tir.structurally_equal(func, other):
                return plan
        recurrences = analyse(func).recurrences
        plan = _likely_plan(self.target, recurrences[0]) if len(recurrences) == 1 else None
        known.append((func, plan))
        return plan

    def _work(self, func: tirx.PrimFunc) -> float:
        """Steps of all lanes; infinite where that is not known."""
        (recurrence,) = analyse(func).recurrences
        extents = [tir.as_int(axis.extent) for axis in (*recurrence.lanes, recurrence.time)]
        return inf if None in extents else prod(e for e in extents if e is not None)

    def _take_producer(self, flow: Dataflow, scan: _Scan) -> bool:
        if (scan.func.attrs or {}).get(DECLARED) is not None:
            return False  # it names its inputs
        for at, arg in enumerate(scan.args):
            if not isinstance(arg, relax.Var) or flow.uses(arg) != 1:
                continue
            producer = self._neighbour(flow.value(arg), scan)
            producer = producer and self.neighbours.in_order(flow, producer, scan.largest)
            if producer is None:
                continue
            shared = [position(other, scan.args) for other in producer.args]
            func = with_producer(scan.func, at, len(scan.types), producer.part, shared)
            if func is None or not self._accepts(func, scan):
                continue
            for var in (arg, *producer.removed):
                flow.remove(var)
            for var in producer.dropped:
                flow.drop_use(var)
            added = self._joined(flow, producer, shared)
            scan.args = [*scan.args[:at], *scan.args[at + 1 :], *added]
            scan.func = func
            scan.taken += producer.names
            return True
        return False

    def _take_consumer(self, flow: Dataflow, scan: _Scan) -> bool:
        for at, out in flow.results(scan.var, len(scan.types)):
            reader = flow.only_reader(out)
            consumer = None if reader is None else self._neighbour(flow.value(reader), scan)
            if reader is None or consumer is None:
                continue
            if not self._may_follow(consumer, scan.types[at], scan):
                continue
            others = [arg for arg in consumer.args if not same_var(arg, out)]
            once = len(others) == len(consumer.args) - 1
            if not once or any(flow.depends(arg, scan.var) for arg in others):
                continue
            number = len(scan.args) + at
            shared = [
                number if same_var(arg, out) else position(arg, scan.args) for arg in consumer.args
            ]
            func = with_consumer(scan.func, number, len(scan.types), consumer.part, shared)
            if func is None or not self._accepts(func, scan):
                continue
            scan.args += self._joined(flow, consumer, shared)
            scan.types[at] = reader.ty
            scan.func = func
            scan.taken += consumer.names
            if len(scan.types) == 1:
                flow.move(scan.var, reader)
                scan.var = reader
            else:
                scan.retyped = True
                flow.move(out, reader)
            return True
        return False

    def _neighbour(self, value: Any, scan: _Scan) -> Neighbour | None:
        neighbour = self.neighbours.of(value)
        if neighbour is not None and neighbour.part.is_costly and scan.plan.keeps_loop:
            return None  # a loop of its own is vectorised, the time loop is not
        return neighbour

    @staticmethod
    def _may_follow(consumer: Neighbour, output: relax.TensorType, scan: _Scan) -> bool:
        """Return whether accesses out of order are little beside what the scan reads."""
        strays = [consumer.args[i].ty for i in consumer.part.strays]
        return not strays or all(is_small(kind, scan.largest) for kind in (*strays, output))

    @staticmethod
    def _joined(
        flow: Dataflow, neighbour: Neighbour, shared: Sequence[int | None]
    ) -> list[relax.Expr]:
        """The arguments that the scan lacks; those that it has are read once less."""
        for other, k in zip(neighbour.args, shared, strict=True):
            if k is not None:
                flow.drop_use(other)
        return [arg for arg, k in zip(neighbour.args, shared, strict=True) if k is None]

    def _accepts(self, func: tirx.PrimFunc, scan: _Scan) -> bool:
        """Return whether it still is one recurrence, and in parallel if it was."""
        plan = self._plan(func)
        return plan is not None and plan.keeps_loop <= scan.plan.keeps_loop

    def _commit(self, flow: Dataflow, scan: _Scan) -> None:
        self.builder = self.builder or relax.BlockBuilder(self.mod)
        name = "_".join(["fused", *dict.fromkeys([*scan.taken, scan.name])])
        _LOG.info("%s: fused %s", scan.name, ", ".join(scan.taken))
        function = self.builder.add_func(scan.func.without_attr("global_symbol"), name)
        types = scan.types if len(scan.types) > 1 else scan.types[0]
        value = self.builder.normalize(relax.call_tir(function, scan.args, types))
        if not scan.retyped:
            flow.replace(scan.var, value)
        else:
            flow.replace_tuple(scan.var, value, relax.TupleType(scan.types))
        self.fused[str(function.name_hint)] = scan.func
        self.replaced.add(scan.name)


def _likely_plan(target: Target, recurrence: Recurrence) -> ScanPlan | None:
    """The default plan; where that is the loop by little, the best one in parallel.

    What a scan takes in is work that it shares over cores and vectors, and the loop does not. None
    where the device has no plan: a scan may take in more arrays than a kernel can be given.
    """
    try:
        decision = decide(target, recurrence)
    except PlanError:
        return None
    chosen = decision.chosen
    if not chosen.plan.keeps_loop:
        return chosen.plan
    near = (other.plan for other in decision.others if other.seconds <= _BY_LITTLE * chosen.seconds)
    return next((plan for plan in near if not plan.keeps_loop), chosen.plan)
