"""Calls as sources of functions that do the same to other tensors.

`repeated` remembers calls by these. A line of source is quicker than a loop over a list of steps:
of 4 microseconds beside the kernel of a step of decoding it takes one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

from torch import Tensor

from tvm_scan.torch.kernels.cache import held_kernel
from tvm_scan.torch.kernels.events import Event, Recording, Run, Step
from tvm_scan.torch.kernels.runtime import ALIGNMENT, prepared
from tvm_scan.torch.private import increment_version


class Way(NamedTuple):
    """The lines of a function of the values of a call, and what they name beside these."""

    size: int
    lines: tuple[str, ...]
    names: dict[str, Any]

    @property
    def arguments(self) -> list[str]:
        """The names of the values."""
        return [f"a{number}" for number in range(self.size)]

    def function(self, *conditions: str, **names: Any) -> Callable[..., Any]:
        """Make the function, which returns None where a condition does not hold."""
        lines = self.lines
        if conditions:
            lines = (f"if not ({' and '.join(conditions)}): return None", *lines)
        head = f"def way({', '.join(self.arguments)}):"
        known = {**self.names, **names}
        exec(_code("\n ".join((head, *lines))), known)
        function: Callable[..., Any] = known["way"]
        return function


@functools.lru_cache(maxsize=1024)  # to compile takes a hundred times as long as to run
def _code(source: str) -> CodeType:
    return compile(source, "<tvm_scan: a repeated call>", "exec")


def way_of(events: Sequence[Event], values: Sequence[Any], result: Any) -> Way | None:
    """Return the way of a call, given what it told.

    Parameters
    ----------
    events : sequence
        What `events` gathered.
    values : sequence
        The arguments of the call.
    result : Any
        What it returned.

    Returns
    -------
    Way or None
        None where it ran more than one kernel, returned no tuple or list, or used a tensor of which
        nothing was told.
    """
    kernels = [event for event in events if not isinstance(event, Step)]
    if len(kernels) != 1 or not isinstance(result, (tuple, list)):
        return None
    source, needed = _Source(values), _needed(events, result)
    try:
        for event in events:
            if isinstance(event, Run):
                source.run(event, result)
            elif isinstance(event, Recording):
                source.record(event)
            elif event.result is None or id(event.result) in needed:
                source.step(event)
        return source.way(result)
    except _UnknownTensorError:
        return None


def _needed(events: Sequence[Event], result: Sequence[Any]) -> set[int]:
    """Ids of the values that a result is made of."""
    needed = {id(part) for part in result}
    for event in reversed(events):
        if isinstance(event, Run):
            needed |= {id(operand) for operand in event.operands}
        elif not isinstance(event, Step) or event.result is None or id(event.result) in needed:
            needed |= {id(argument) for argument in event.arguments}
    return needed


class _UnknownTensorError(Exception):
    """Something else was computed of the arguments than was told."""


class _Source:
    """The source of a way, line by line.

    Parameters
    ----------
    values : sequence
        The arguments of the call.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._size = len(values)
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"prepared": prepared, "increment_version": increment_version}
        #: Names of tensors by their ids.
        self._tensors: dict[int, str] = {}
        for number, value in enumerate(values):
            if isinstance(value, Tensor):
                self._tensors.setdefault(id(value), f"a{number}")
        #: The arguments to which a kernel may have written.
        self._open: set[str] = set()

    def _name(self, value: Any) -> str:
        if isinstance(value, Tensor):
            if id(value) not in self._tensors:
                raise _UnknownTensorError
            return self._tensors[id(value)]
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def _call(self, function: Any, arguments: Sequence[str]) -> str:
        return f"{self._constant(function)}({', '.join(arguments)})"

    def _new(self, tensor: Tensor) -> str:
        return self._tensors.setdefault(id(tensor), f"t{len(self._tensors)}")

    def step(self, step: Step) -> None:
        """Make a tensor."""
        call = self._call(step.function, [self._name(value) for value in step.arguments])
        result = step.result
        self._lines.append(call if result is None else f"{self._new(result)} = {call}")

    def run(self, run: Run, result: Sequence[Any]) -> None:
        """Run a kernel."""
        names = []
        for operand in run.operands:
            name = self._name(operand)
            names.append(name)
            if not isinstance(operand, Tensor):
                continue
            # What lies in memory otherwise than a kernel reads it is copied.
            if prepared(operand.detach()).data_ptr() != operand.data_ptr():
                names[-1] = f"prepared({name})"
            elif name.startswith("a"):
                self._open.add(name)
            else:
                self._lines.append(f"if {name}.data_ptr() % {ALIGNMENT}: {name} = prepared({name})")
        kernel = self._constant(held_kernel(run.key))
        self._lines.append(f"{kernel}()({', '.join(names)})")
        # Autograd is told of arguments that are results, too.
        written = self._open & {self._tensors.get(id(part), "") for part in result}
        if written:
            self._lines.append(f"increment_version(({', '.join(sorted(written))},))")

    def record(self, recording: Recording) -> None:
        """Make a call that autograd records."""
        names = [self._name(value) for value in recording.arguments]
        inner = way_of(recording.inside, recording.arguments, recording.results)
        if inner is None:
            raise _UnknownTensorError
        names.append(self._constant(inner.function()))
        results = "".join(f"{self._new(part)}, " for part in recording.results)
        self._lines.append(f"{results}= {self._call(recording.call, names)}")

    def way(self, result: Sequence[Any]) -> Way:
        """Return the way to a result."""
        names = ["None" if part is None else self._name(part) for part in result]
        # What a kernel wrote to a copy is in no argument.
        if any(name.startswith("a") and name not in self._open for name in names):
            raise _UnknownTensorError
        form = "[{}]" if isinstance(result, list) else "({},)"
        lines = (*self._lines, f"return {form.format(', '.join(names))}")
        return Way(self._size, lines, self._names)
