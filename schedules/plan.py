"""``ScanPlan``: a schedule and its decisions, as one small frozen value.

Each schedule is a frozen dataclass that derives from ``ScanPlan``. Its fields are its decisions and
nothing of another schedule's; its methods are all that the rest of the project asks of a schedule.
This module has what the schedules share: the string form, the annotations, and the checks that none
does without. ``registry`` lists the schedules.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import Field, fields, replace
from itertools import islice
from typing import Any, ClassVar, NoReturn, TypeVar

from tvm.target import Target

from tvm_scan import tir
from tvm_scan.arguments import as_recurrence, as_target, host_target
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.machine.cost import Cost
from tvm_scan.schedules.machine.device_checks import check_device
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture

Plan = TypeVar("Plan", bound="ScanPlan")

#: Plans of a branch that a default is chosen among, where a schedule does not say which.
_SHORT = 12
_FORM = re.compile(r"(\w+)/(\w+)\((.*)\)", re.ASCII)
#: Type of a decision -> its values in the string form, and what they are called.
_VALUES: dict[type, tuple[re.Pattern[str], str]] = {
    bool: (re.compile("True|False"), "True or False"),
    int: (re.compile("-?[0-9]{1,18}"), "int"),
    str: (re.compile(r"\w+", re.ASCII), "a word"),
}


#: Every schedule; ``registry`` fills it.
SCHEDULES: list[type[ScanPlan]] = []


class ScanPlan(ABC):
    """Every decision of a schedule; printable, hashable, one string form.

    ``ScanPlan.of`` and ``ScanPlan.parse`` make plans of any schedule; a schedule's own class makes
    its own.

    Attributes
    ----------
    device : str
        What the schedule is for: ``cpu`` or ``cuda``.
    algorithm : str
        Its name among those of the device.
    keeps_loop : bool
        Whether the plan leaves the loop as it was written, on one core or with one thread for each
        lane.
    takes : tuple of type
        Kinds of loops that it is for: ``Recurrence``, ``DeltaRule`` or both.
    words : mapping
        Values of those decisions that are words.
    """

    device: ClassVar[str]
    algorithm: ClassVar[str]
    keeps_loop: ClassVar[bool] = False
    takes: ClassVar[tuple[type[TimeLoop], ...]] = (Recurrence,)
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    # ---- what a schedule owns -----------------------------------------------------------------

    @abstractmethod
    def check_fit(self, recurrence: Any, machine: Machine) -> None:
        """Check that the plan fits a recurrence and what a target has.

        Raises
        ------
        PlanError
            With the number that was expected and the one that was found.
        """

    @abstractmethod
    def build(self, recurrence: Any) -> Built | None:
        """Return the statements of a plan that fits, or None for the nest as it is; pure."""

    @abstractmethod
    def cost(self, recurrence: Any, machine: Machine, steps: int | None = None) -> Cost:
        """Predict what the plan takes.

        Parameters
        ----------
        recurrence : Recurrence
            What runs; extents that are not known count as 4096.
        machine : Machine
            Of the target.
        steps : int, optional
            Number of steps where it is not known.
        """

    @classmethod
    @abstractmethod
    def space(cls, recurrence: Any, machine: Machine) -> Iterator[Branch]:
        """Yield what a search may try; plans that do not fit may be among it."""

    @classmethod
    def shortlist(cls, recurrence: Any, machine: Machine) -> Iterator[ScanPlan]:
        """Yield what a default is chosen among, simple plans first: of the space some dozens."""
        for branch in cls.space(recurrence, machine):
            fitting = (plan for plan in branch.plans() if plan.fits(recurrence, machine))
            yield from islice(fitting, _SHORT)

    @classmethod
    def lengths(cls, recurrence: Any, machine: Machine) -> tuple[int | None, ...]:
        """Lengths at which plans are compared; None for the one that is known, or ``UNKNOWN``."""
        return (None,)

    @abstractmethod
    def picture(self, recurrence: Any) -> Picture:
        """Return what ``tvm-scan explain`` draws."""

    def why_wasteful(self, steps: int) -> str | None:
        """Say why a plan that fits is not worth a trial for so many steps; None where it is."""
        return None

    def registers_fit(self, recurrence: Any) -> bool:
        """Return whether the registers of a thread suffice, by an estimate from above."""
        return True

    def shared_bytes(self, recurrence: Any) -> int:
        """Bytes of shared memory that one block takes; see ``smem_bytes``."""
        return 0

    @property
    def has_barriers(self) -> bool:
        """Return whether threads wait for each other in its kernels."""
        return False

    @property
    def step_passes(self) -> int:
        """Number of times a step is made: twice where chunks are reduced and replayed."""
        return 1

    def combines(self, steps: int) -> float:
        """Combinations of elements that one lane of so many steps makes."""
        return 0.0

    @property
    def kind(self) -> Hashable:
        """The group of alike plans: a search tries one of each group before it knows more."""
        return self.device, self.algorithm

    # ---- plans of any schedule -----------------------------------------------------------------

    @staticmethod
    def of(device: str, algorithm: str, *values: Any, **decisions: Any) -> ScanPlan:
        """Make a plan of the schedule of this name.

        Parameters
        ----------
        device, algorithm : str
            As in the string form.
        *values, **decisions
            Of the schedule, in its order or by name; those that are left out have their defaults.

        Raises
        ------
        PlanError
            If there is no such schedule, or it has no such decision.
        """
        schedule = _schedule(device, algorithm)
        kinds = schedule.decisions()
        decisions = {**dict(zip(kinds, values, strict=False)), **decisions}
        if len(values) > len(kinds):
            _unreadable(f"at most {len(kinds)} decisions", f"{len(values)}", "of")
        for name, value in decisions.items():
            if name not in kinds:
                _unreadable(f"one of {sorted(kinds)}", f"the field {name!r}", "of")
            if type(value) is not kinds[name]:
                _unreadable(f"{kinds[name].__name__} for {name}", repr(value), "of")
        return schedule(**decisions)

    @staticmethod
    def parse(text: str) -> ScanPlan:
        """Read the string form.

        Raises
        ------
        PlanError
            If the text is not the string form of a plan.
        """
        match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            _unreadable("device/algorithm(field=value, ...)", repr(text))
        schedule = _schedule(match[1], match[2])
        kinds = schedule.decisions()
        values: dict[str, Any] = {}
        for item in (part.strip() for part in match[3].split(",")) if match[3].strip() else ():
            name, equals, value = item.partition("=")
            if not equals:
                _unreadable("field=value", repr(item))
            if name not in kinds:
                _unreadable(f"one of {sorted(kinds)}", f"the field {name!r}")
            if name in values:
                _unreadable("each field once", f"{name} twice")
            values[name] = _value(kinds[name], name, value)
        return schedule(**values)

    @classmethod
    def decisions(cls) -> dict[str, type]:
        """Return the type of every decision of this schedule, by its name."""
        return {field.name: type(field.default) for field in _fields(cls)}

    def smem_bytes(self, recurrence: TimeLoop) -> int:
        """Shared memory of one block in bytes: every part of every element, padded.

        Raises
        ------
        RefusalError, ScanError
            If it is no recurrence.
        """
        return self.shared_bytes(as_recurrence(recurrence, "ScanPlan.smem_bytes"))

    def __str__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)}"
            for field in _fields(type(self))
            if getattr(self, field.name) != field.default
        ]
        return f"{self.device}/{self.algorithm}({', '.join(shown)})"

    def with_(self: Plan, **changes: Any) -> Plan:
        """Copy with some decisions changed."""
        return replace(self, **changes)  # type: ignore[type-var]

    # ---- annotations ---------------------------------------------------------------------------

    def annotations(self) -> dict[str, str | int]:
        """Return the decisions as scalars, as annotations of a block hold them."""
        values = {name: getattr(self, name) for name in self.decisions()}
        scalars = {n: int(v) if isinstance(v, bool) else v for n, v in values.items()}
        return {"device": self.device, "algorithm": self.algorithm, **scalars}

    @staticmethod
    def from_annotations(annotations: Mapping[str, Any]) -> ScanPlan:
        """Return the plan that scalars spell.

        Parameters
        ----------
        annotations : mapping of str
            Device, algorithm, and any of the decisions: those that are missing have their defaults.
            Older annotations spell every decision of every schedule: another
            schedule's at its default is passed over.

        Raises
        ------
        PlanError
            If a value is of no decision, or not of the decision's kind: then it is of another
            version, or damaged.
        """
        words = [annotations.get("device", "cpu"), annotations.get("algorithm", "sequential")]
        for name, word in zip(("device", "algorithm"), words, strict=True):
            if not isinstance(word, str):
                raise PlanError(f"expected str for {name}, got {word!s:.60}")
        schedule = _schedule(*words)
        kinds = schedule.decisions()
        values: dict[str, Any] = {}
        for name, raw in annotations.items():
            if name in ("device", "algorithm"):
                continue
            value = raw if isinstance(raw, str) else tir.as_int(raw)
            if name not in kinds:
                if name in _OF_OTHERS and value == _OF_OTHERS[name]:
                    continue
                raise PlanError(
                    f"expected annotations of {sorted(kinds)} for {words[0]}/{words[1]}, got the "
                    f"field {name!r} with {raw!s:.60}"
                )
            kind = kinds[name]
            wrong = not isinstance(value, str if kind is str else int)
            if wrong or (kind is bool and value not in (0, 1)):
                raise PlanError(f"expected {kind.__name__} for {name}, got {raw!s:.60}")
            values[name] = kind(value)
        return schedule(**values)

    # ---- checks --------------------------------------------------------------------------------

    def check(self, target: Target, recurrence: TimeLoop) -> None:
        """Check that the plan fits the target and the recurrence.

        Parameters
        ----------
        target : tvm.target.Target or str
            Where the kernel will run.
        recurrence : Recurrence or DeltaRule
            What will run.

        Raises
        ------
        PlanError
            With the number that was expected and the one that was found.
        """
        recurrence = as_recurrence(recurrence, "ScanPlan.check")
        target = as_target(target, "ScanPlan.check") or host_target()
        machine = Machine.of(target)
        self.require(
            self.device == machine.device.plans,
            f"a plan for {machine.device.plans}",
            f"device={self.device}",
            "ask default_plan for one of this target",
        )
        self.check_on(machine, recurrence)

    def fits(self, recurrence: TimeLoop, machine: Machine) -> bool:
        """Return whether ``check_fit`` passes."""
        if not isinstance(recurrence, self.takes):
            return False
        try:
            self.check_fit(recurrence, machine)
        except PlanError:
            return False
        return True

    def check_on(self, machine: Machine, recurrence: TimeLoop) -> None:
        """Check that the plan fits what a target has; see ``check``."""
        self.require(
            isinstance(recurrence, self.takes),
            f"a plan for a {recurrence.noun}",
            f"one for a {' or a '.join(kind.noun for kind in self.takes)}",
            "leave the plan out, or ask default_plan for one of this loop",
        )
        check_device(self, recurrence, machine)
        self.check_fit(recurrence, machine)

    def require(self, holds: bool, expected: str, found: str, fix: str) -> None:
        """Raise a ``PlanError`` with what was expected, found, and the fix, unless it holds."""
        if not holds:
            raise PlanError(f"ScanPlan.check: expected {expected}, got {found}; {fix} ({self})")


Schedule = TypeVar("Schedule", bound=type[ScanPlan])


def register(schedule: Schedule) -> Schedule:
    """Make a schedule one of those that are parsed, searched, chosen among and drawn.

    Parameters
    ----------
    schedule : type
        A frozen dataclass that derives from ``ScanPlan``.

    Returns
    -------
    type
        The same, so that this is a decorator, too.

    Raises
    ------
    PlanError
        If its device has one of this name.
    """
    name = f"{schedule.device}/{schedule.algorithm}"
    if any(name == f"{other.device}/{other.algorithm}" for other in SCHEDULES):
        raise PlanError(f"register: expected a new name, got {name}, which exists; choose another")
    SCHEDULES.append(schedule)
    return schedule


def schedules_of(device: str, loop: TimeLoop | None = None) -> list[type[ScanPlan]]:
    """Schedules of a device, the loop as it was written first.

    Parameters
    ----------
    device : str
        What they are for: ``cpu`` or ``cuda``.
    loop : Recurrence or DeltaRule, optional
        What they have to take; any if not given.
    """
    every = [schedule for schedule in SCHEDULES if schedule.device == device]
    return every if loop is None else [s for s in every if isinstance(loop, s.takes)]


def _fields(schedule: type[ScanPlan]) -> tuple[Field[Any], ...]:
    return fields(schedule)  # type: ignore[arg-type]


def _schedule(device: str, algorithm: str) -> type[ScanPlan]:
    """The schedule of this name, or a ``PlanError`` that lists the names."""
    schedule = next((s for s in SCHEDULES if (s.device, s.algorithm) == (device, algorithm)), None)
    if schedule is not None:
        return schedule
    devices = dict.fromkeys(s.device for s in SCHEDULES)
    if device not in devices:
        _unreadable(f"one of {', '.join(devices)}", f"device={device}")
    names = ", ".join(s.algorithm for s in SCHEDULES if s.device == device)
    return _unreadable(f"one of {names} on {device}", f"algorithm={algorithm}")


def _value(kind: type, name: str, text: str) -> Any:
    form, called = _VALUES[kind]
    if form.fullmatch(text) is None:
        _unreadable(f"{called} for {name}", repr(text))
    return text == "True" if kind is bool else kind(text)


def _unreadable(expected: str, found: str, caller: str = "parse") -> NoReturn:
    raise PlanError(
        f"ScanPlan.{caller}: expected {expected}, got {found}; print a plan to see the form"
    )


#: The decisions of all schedules as they were when a plan had those of every one.
_OF_OTHERS: dict[str, str | int] = {
    "threads_per_block": 0,
    "items_per_thread": 0,
    "block_tree": "blelloch",
    "lane_block": 1,
    "vectorize": 0,
    "chunks": 0,
    "time_vector": 0,
    "time_runs": 0,
    "cache_steps": 0,
    "transpose": 0,
    "prefetch": 0,
    "nontemporal": 0,
    "ldexp": 0,
    "library_math": 0,
    "vector_loads": 0,
    "threads_per_lane": 1,
    "block_load": "direct",
    "stages": 1,
    "lanes_per_block": 1,
    "exp_share": 0,
}
