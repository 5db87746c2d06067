"""The frozen values between proof and rewrite: ``Recurrence`` and ``Refusal``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from tvm.ir import Var
from tvm.tirx import PrimFunc, Stmt

from tvm_scan import tir


class RefusalKind(Enum):
    """The kind of a refusal of a loop nest. Each has a minimal failing program in the tests."""

    NO_RECURRENCE = "no-recurrence"
    REDUCTION = "plain-reduction"
    UNSUPPORTED_STEP = "unsupported-step"
    FUTURE_READ = "future-read"
    UNSUPPORTED_LAG = "unsupported-lag"
    VARYING_LAG = "varying-lag"
    CROSS_LANE = "cross-lane"
    COUPLED_CARRIES = "coupled-carries"
    SEVERAL_TIME_LOOPS = "several-time-loops"
    NO_INITIAL_STATE = "no-initial-state"
    ALIASING = "aliasing"
    SIDE_EFFECT = "side-effect"
    UNSUPPORTED_BODY = "unsupported-body"


@dataclass(frozen=True, eq=False)
class Refusal:
    """A loop nest that is not provably a supported recurrence, and why.

    Attributes
    ----------
    kind : RefusalKind
        The class of the reason.
    expr : object or None
        The offending TIR node of the original function, to be underlined.
    detail : str
        What was expected and what was found.
    fix : str
        How to change the loop.
    func : PrimFunc or None
        The function, for printing the underlined script.
    loops : tuple of (list of Stmt, list of Var) or None
        The nest as two loops over time, if it can be written so, and the buffers of these.
    """

    kind: RefusalKind
    expr: Any
    detail: str
    fix: str
    func: PrimFunc | None = None
    loops: tuple[list[Any], list[Var]] | None = None

    def message(self) -> str:
        """Return the refusal as text, the offending expression underlined in the script."""
        from tvm_scan.refusal_text import refusal_text

        return refusal_text(self)

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"


@dataclass(frozen=True, eq=False)
class Axis:
    """A loop of the recurrence: its variable and its extent (constant or symbolic)."""

    var: Var
    extent: Any


@dataclass(frozen=True, eq=False)
class Register:
    """A written buffer of the loop body, kept per lane in registers while time advances.

    Attributes
    ----------
    buffer : Var
        The buffer that the user's loop writes.
    local : Var
        The register array that stands for it in ``Recurrence.body``; float32 for halves.
    previous : tuple of Var
        For a history buffer that is read up to k steps back: the registers of the last k steps,
        the latest first.
    base : tuple of Expr
        Per dimension of ``buffer`` the part of the index that is fixed by lane and time.
    extents : tuple of int
        Extents of ``local``, one per dimension of ``buffer`` (1 where nothing varies).
    lower : tuple of int
        Smallest varying index per dimension; ``index = base + lower + local index``.
    timed : bool
        Whether ``base`` moves with time (a history) or not (an in-place state).
    visible : bool
        Whether the buffer is read or returned outside this loop nest.
    """

    buffer: Var
    local: Var
    previous: tuple[Var, ...]
    base: tuple[Any, ...]
    extents: tuple[int, ...]
    lower: tuple[int, ...]
    timed: bool
    visible: bool

    @property
    def states(self) -> tuple[Var, ...]:
        """Register arrays that hold the carries between two steps, the latest first."""
        return self.previous or (self.local,)


@dataclass(frozen=True, eq=False)
class Carry:
    """One loop-carried scalar, or a family of them over independent state axes.

    Attributes
    ----------
    register : Register
        Where it lives.
    cell : tuple of Expr
        Index into the register array, over the variables of ``state_axes``.
    state_axes : tuple of Axis
        Axes over which carries are independent within one lane (N of a selective scan).
    old : Var
        The carry before the step, as it appears in the steps of its group.
    before : Var
        Buffer of the shape of the register array: what other groups' steps load instead.
    lag : int
        How many steps back; the carry of lag 2 becomes what that of lag 1 was.
    step : Expr
        The carry after the step: over the ``old`` of its group, the ``before`` of earlier
        groups, inputs, lanes, time and state axes.
    first : Expr or None
        The carry after step 0 where the loop treats step 0 apart; then there is no initial
        state and ``step`` holds from step 1 on.
    dtype : str
        Dtype in which the carry is computed (float32 for halves).
    """

    register: Register
    cell: tuple[Any, ...]
    state_axes: tuple[Axis, ...]
    old: Var
    before: Var
    lag: int
    step: Any
    first: Any
    dtype: str
    origin: Any = None

    @property
    def state(self) -> Var:
        """Register array that it lives in between two steps."""
        return self.register.states[self.lag - 1]

    @property
    def name(self) -> str:
        """Name of the user's buffer."""
        return str(self.register.buffer.name)


@dataclass(frozen=True, eq=False)
class Group:
    """Carries that depend on each other in a circle (most often one), and their family.

    Attributes
    ----------
    carries : tuple of int
        Positions in ``Recurrence.carries``; all have the same state axes.
    algebra : Algebra
        The proven family of their joint step.
    level : int
        0 if the step depends on inputs alone, else one more than the last group it depends on.
    """

    carries: tuple[int, ...]
    algebra: Any
    level: int


@dataclass(frozen=True, eq=False)
class Emit:
    """An output written at every step: the buffer, and the statement that writes it."""

    buffer: Var
    origin: Any


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A loop nest as a recurrence: everything a schedule needs, nothing of the loop left.

    ``lanes`` are independent. Within a lane, ``start`` sets the registers, ``body`` makes one
    step, and ``finish`` runs after the last one. All three are statements over registers, lane
    variables and (``body`` only) the time variable, so that any chunk of time can be replayed
    from the carry at its beginning.

    Attributes
    ----------
    func : PrimFunc
        The function it was found in.
    nest : Stmt
        The statement of the root block that it is.
    lanes : tuple of Axis
        Independent recurrences, outermost first.
    time : Axis
        The time axis, counted from 0 in the order in which the loop runs.
    guard : Expr or None
        Condition on the lane variables under which the lane exists.
    carries : tuple of Carry
        What is carried.
    groups : tuple of Group
        The carries by mutual dependence, each with its algebra, in order of their levels.
    registers : tuple of Register
        Register arrays that ``start``, ``body`` and ``finish`` use.
    emits : tuple of Emit
        Outputs written at each step.
    prologue : Stmt or None
        Sets the registers that are not carries and that the body only reads.
    start : Stmt or None
        Sets the registers of the carries to the initial state.
    boundary : Stmt or None
        Writes to memory before the first step, to be made by one owner of the lane.
    body : Stmt
        One step.
    finish : Stmt or None
        Writes after the last step (final state, epilogue).
    inputs, outputs : tuple of Var
        Buffers of the function that are read and written.
    """

    noun: ClassVar[str] = "recurrence"

    func: PrimFunc
    nest: Stmt
    lanes: tuple[Axis, ...]
    time: Axis
    guard: Any
    carries: tuple[Carry, ...]
    registers: tuple[Register, ...]
    emits: tuple[Emit, ...]
    prologue: Stmt | None
    start: Stmt | None
    boundary: Stmt | None
    body: Stmt
    finish: Stmt | None
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    groups: tuple[Group, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Lanes and time."""
        return (*self.lanes, self.time)

    @property
    def step(self) -> Stmt:
        """One step as statements."""
        return self.body

    @property
    def parts(self) -> tuple[Any, ...]:
        """All that it computes, as statements in a fixed order; None for what it has not."""
        around = (self.prologue, self.start, self.boundary)
        return (*around, self.body, self.finish, self.guard)

    @property
    def families(self) -> list[tuple[Any, ...]]:
        """Level and family of every group."""
        return [(group.level, group.algebra.name) for group in self.groups]

    @property
    def carries_halves(self) -> bool:
        """Return whether the loop rounds what it carries to a half at every step."""
        return any(tir.is_half(tir.dtype_of(c.register.buffer)) for c in self.carries)

    @property
    def roundings(self) -> int:
        """Roundings that one step adds to a cell."""
        return 1

    @property
    def algebras(self) -> tuple[Any, ...]:
        """The algebra of every group."""
        return tuple(group.algebra for group in self.groups)

    @property
    def levels(self) -> int:
        """Number of scans that must follow one another; 1 where no carry feeds another."""
        return 1 + max(group.level for group in self.groups)

    def state_axes(self, group: Group) -> tuple[Axis, ...]:
        """State axes of a group's carries."""
        return self.carries[group.carries[0]].state_axes
