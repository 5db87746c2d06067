"""Registration of the operators with torch.

``torch.library.custom_op`` would do, but imports ``torch._dynamo`` at the first call, which takes
most of a second, and costs some microseconds at every call. This registers the same things: a
schema, an implementation, a fake kernel, a derivative, and a rule for vmap. All but the first two
have defaults.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from tvm_scan.torch.declare.bundles import with_fields
from tvm_scan.torch.declare.dispatch import (
    NAMESPACE,
    forward_mode,
    is_recorded,
    library,
    refuse_tangents,
)
from tvm_scan.torch.declare.mapped import Rule, folded
from tvm_scan.torch.declare.recorded import recorded
from tvm_scan.torch.declare.transformed import Setup, transformed
from tvm_scan.torch.private import (
    dual_level_is_open,
    is_watched,
    schema_of,
    transforms_active,
)

Result = TypeVar("Result")


class Operator(Generic[Result]):
    """A torch operator; made by `operator`, called like the function that it was made of."""

    def __init__(
        self,
        function: Callable[..., Result],
        name: str,
        like: tuple[tuple[str, bool], ...],
        rule: Rule,
    ) -> None:
        function = with_fields(function)
        discrete = all(integers for _, integers in like)
        self._discrete, self._like, self._rule = discrete, like, rule
        schema = torch.library.infer_schema(function, mutates_args=())
        self.parameters = tuple(inspect.signature(function).parameters)
        implementation = without_autocast(function)
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.implementations[name] = implementation, discrete
        library.impl(name, implementation, "CPU")
        library.impl(name, implementation, "CUDA")
        self.name, self.__doc__ = f"{NAMESPACE}::{name}", function.__doc__
        self._implementation: Callable[..., Result] = implementation
        self._transformed: Callable[..., Any] | None = None
        self._recorded: Callable[..., Result] | None = None
        self._fake: Callable[..., Any] = self._like_arguments
        self._overload: Callable[..., Result]
        self._overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        torch.library.register_fake(self.name, self._checked_fake, lib=library)
        torch.library.register_vmap(self.name, self._map, lib=library)

    def __call__(self, *arguments: Any) -> Result:
        """Call the operator, with a derivative that the transform in progress can see."""
        if torch.compiler.is_compiling():
            return self._overload(*arguments)
        # torch.func differentiates autograd.Functions, not derivatives registered to operators.
        if transforms_active():
            if self._transformed is not None:
                result: Result = self._transformed(arguments)
                return result
            if dual_level_is_open() and not self._discrete:
                raise NotImplementedError(forward_mode(self.name))
            return self._overload(*arguments)
        if dual_level_is_open() and not self._discrete:
            refuse_tangents(self.name, arguments)
        if not is_watched():
            records = is_recorded(arguments)
            if records is False:
                return self._implementation(*arguments)
            if records and self._recorded is not None:
                return self._recorded(*arguments)
        return self._overload(*arguments)

    def fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Say what the results look like, where they are not like arguments.

        The function takes those of the operator's parameters that it names.
        """
        fake = with_fields(function)
        numbers = [self.parameters.index(name) for name in inspect.signature(fake).parameters]
        self._fake = lambda *arguments: fake(*(arguments[n] for n in numbers))
        return function

    def vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Say what a mapped axis means, by a rule of its own; see `mapped`."""
        self._rule = function
        return function

    def gradient(
        self,
        backward: Callable[..., Any],
        saves: str = "",
        *,
        setup: Setup | None = None,
        zeros: bool = True,
    ) -> None:
        """Register the adjoint.

        Parameters
        ----------
        backward : callable
            Given a context and the gradients of the results, gives those of the arguments; the
            last ones may be left out where they have none. The context has ``saved_tensors``, and
            the arguments that are no tensors under their names. Of a list of results it is given
            a list, and of an argument that is a list it gives one.
        saves : str
            What is saved: names of arguments, ``results``, or one of them as ``results[1]``.
        setup : callable, optional
            Saves something else; as torch's ``setup_context``.
        zeros : bool
            Whether gradients that nobody has computed come as zeros, not as None.
        """
        setup = setup or self._setup(saves.split(), zeros)
        count = len(self.parameters)

        def padded(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            gradients = backward(ctx, *grads)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return (*gradients, *[None] * (count - len(gradients)))

        torch.library.register_autograd(self.name, padded, setup_context=setup, lib=library)
        self._transformed = transformed(self.name, self._overload, padded, setup, self._map)
        self._recorded = recorded(self._overload, self._implementation, padded, setup)

    def _setup(self, saves: Sequence[str], zeros: bool) -> Setup:
        indices = {name: index for index, name in enumerate(self.parameters)}
        parts = [name.partition("[") for name in saves]
        sources = [(indices.get(name), int(rest[:-1]) if rest else -1) for name, _, rest in parts]
        kinds = [str(argument.type) for argument in schema_of(self._overload).arguments]
        values = [pair for pair in indices.items() if "Tensor" not in kinds[pair[1]]]
        discrete = [number for number, (_, integers) in enumerate(self._like) if integers]

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            saved: list[Tensor | None] = []
            for index, number in sources:
                value = output if index is None else inputs[index]
                if number >= 0:
                    value = value[number]
                if isinstance(value, (list, tuple)):
                    saved += value
                else:
                    saved.append(value)
            for name, index in values:
                setattr(ctx, name, inputs[index])
            if discrete:
                ctx.mark_non_differentiable(*[output[number] for number in discrete])
            if not zeros:
                ctx.set_materialize_grads(False)
            ctx.save_for_backward(*saved)

        return setup

    def _map(self, info: Any, dims: Any, *arguments: Any) -> Any:
        return self._rule(self, info.batch_size, dims, arguments)

    def _checked_fake(self, *arguments: Any) -> Any:
        # A tensor without data among others sends torch here, whose results have no values.
        devices = {str(device) for device in _devices(arguments)}
        if len(devices) > 1:
            raise ValueError(
                f"{self.name}: expected all tensors on one device, got "
                f"{', '.join(sorted(devices))}; move them with .to"
            )
        return self._fake(*arguments)

    def _like_arguments(self, *arguments: Any) -> Any:
        named = dict(zip(self.parameters, arguments, strict=True))
        results = tuple(
            torch.empty_like(
                named[name],
                dtype=torch.int64 if integers else None,
                memory_format=torch.contiguous_format,
            )
            for name, integers in self._like
        )
        return results if len(results) > 1 else results[0]


def _devices(arguments: Iterable[Any]) -> Iterable[torch.device]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument.device
        elif isinstance(argument, (list, tuple)):
            yield from _devices(argument)


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function's products of matrices have the dtype of its tensors."""

    @functools.wraps(function)
    def exact(*arguments: Any) -> Any:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*arguments)
        with contextlib.ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*arguments)

    return exact


@overload
def operator(function: Callable[..., Result]) -> Operator[Result]: ...


@overload
def operator(
    *, name: str = "", like: str = "x", mapped: Rule = folded
) -> Callable[[Callable[..., Result]], Operator[Result]]: ...


def operator(
    function: Callable[..., Result] | None = None,
    *,
    name: str = "",
    like: str = "x",
    mapped: Rule = folded,
) -> Operator[Result] | Callable[[Callable[..., Result]], Operator[Result]]:
    """Make a torch operator ``tvm_scan::<name>`` of a function with annotated arguments.

    Parameters
    ----------
    function : callable
        The implementation, on tensors without gradients. Arguments that belong together may be a
        ``NamedTuple``; the operator takes its fields.
    name : str
        That of the function if not given.
    like : str
        Names of arguments, each like the result at its position: the fake kernel. Behind a name
        ``:int64`` says that the result has those integers, and no derivative.
    mapped : callable
        The rule of vmap; see `mapped`. Mapped axes are folded into the first axis if not given.

    Returns
    -------
    Operator
        To which ``gradient`` adds the adjoint, and ``fake`` and ``vmap`` what is not the default.
    """

    def make(function: Callable[..., Result]) -> Operator[Result]:
        parts = [text.partition(":") for text in like.split()]
        results = tuple((argument, dtype == "int64") for argument, _, dtype in parts)
        return Operator(function, name or function.__name__, results, mapped)

    return make if function is None else make(function)
