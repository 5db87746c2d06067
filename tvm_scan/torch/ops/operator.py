"""How the operators are registered with torch.

``torch.library.custom_op`` would do, but imports ``torch._dynamo`` at the first call, which takes
most of a second, and costs some microseconds at every call. This registers the same things: a
schema, a CPU implementation, a fake kernel, a derivative, and a rule for vmap.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.autograd import forward_ad

from tvm_scan.torch.kernels.places import is_placed
from tvm_scan.torch.private import (
    dual_level_is_open,
    is_watched,
    only_device_is_left,
    transforms_active,
)

__all__ = ["Operator", "forward_mode", "operator", "sees_nothing", "without_autocast"]

_NAMESPACE = "tvm_scan"
Result = TypeVar("Result")


class _Library(torch.library.Library):
    """Puts a shorter way in front of the derivatives that are registered.

    torch's own kernel for them is a Python function that asks the dispatcher again; where nothing
    is recorded and nothing else would see the call, the implementation can be called at once.
    """

    #: By operator: the implementation, and whether it gives integers.
    implementations: ClassVar[dict[str, tuple[Callable[..., Any], bool]]] = {}

    def impl(self, op_name: str, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """Register a kernel, as torch does."""
        if dispatch_key == "Autograd" and op_name in self.implementations:
            implementation, discrete = self.implementations[op_name]
            fn = _unrecorded(fn, implementation, f"{_NAMESPACE}::{op_name}", discrete)
        super().impl(op_name, fn, dispatch_key, **options)


def _unrecorded(
    recording: Callable[..., Any], implementation: Callable[..., Any], name: str, discrete: bool
) -> Callable[..., Any]:
    """Return a kernel that calls `recording` only where something is recorded or looks on."""

    def kernel(keyset: Any, *arguments: Any, **named: Any) -> Any:
        if dual_level_is_open() and not discrete:
            _refuse_tangents(name, arguments)
        if not only_device_is_left(keyset) or named or _is_recorded(arguments):
            return recording(keyset, *arguments, **named)
        return implementation(*arguments)

    return kernel


def _is_recorded(arguments: Iterable[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if argument.requires_grad:
                return True
        elif isinstance(argument, (list, tuple)) and _is_recorded(argument):
            return True
    return False


_library = _Library(_NAMESPACE, "FRAGMENT")


def sees_nothing(arguments: Iterable[Any]) -> bool:
    """Whether nothing but the implementation would see a call: torch's dispatcher may be left out.

    The dispatcher takes as long as a small kernel runs.
    """
    return not (
        torch.compiler.is_compiling()
        or transforms_active()
        or is_watched()
        or not _is_plain(arguments)
    )


def _refuse_tangents(name: str, arguments: Iterable[Any]) -> None:
    """Raise where a dual number comes in: what comes out would silently have no tangent."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            _refuse_tangents(name, argument)
        elif isinstance(argument, torch.Tensor) and (
            forward_ad.unpack_dual(argument).tangent is not None
        ):
            raise NotImplementedError(forward_mode(name))


def forward_mode(name: str) -> str:
    """Say that there are no derivatives in forward mode."""
    return (
        f"{name}: expected tensors without tangents, got a derivative in forward mode (jvp, "
        "jacfwd, hessian); take torch.func.vjp or jacrev, and jacrev of jacrev for a Hessian"
    )


def _is_plain(arguments: Iterable[Any]) -> bool:
    """Whether all tensors are on a CPU or GPU, and of torch's own class, and need no gradient."""
    recorded = torch.is_grad_enabled()
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if type(argument) not in _PLAIN or not is_placed(argument):
                return False
            if recorded and argument.requires_grad:
                return False
            # torch resolves the first two on the way; the last is refused there.
            if argument.is_neg() or argument.is_conj() or argument.is_nested:
                return False
        elif isinstance(argument, (list, tuple)) and not _is_plain(argument):
            return False
    return True


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Operator(Generic[Result]):
    """A torch operator; made by `operator`, called like the function that it was made of."""

    def __init__(self, function: Callable[..., Result], name: str, discrete: bool) -> None:
        self._discrete = discrete
        schema = torch.library.infer_schema(function, mutates_args=())
        function = without_autocast(function)
        _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.implementations[name] = function, discrete
        _library.impl(name, function, "CPU")
        _library.impl(name, function, "CUDA")
        self.name, self.__doc__ = f"{_NAMESPACE}::{name}", function.__doc__
        self._implementation = function
        self._function: type[torch.autograd.Function] | None = None
        self._rule: Callable[..., Any] | None = None
        self._overload: Callable[..., Result]
        self._overload = getattr(getattr(torch.ops, _NAMESPACE), name).default

    def __call__(self, *arguments: Any) -> Result:
        """Call the operator, with a derivative that the transform in progress can see."""
        if torch.compiler.is_compiling():
            return self._overload(*arguments)
        # torch.func differentiates autograd.Functions, not derivatives registered to operators.
        if transforms_active():
            if self._function is not None:
                result: Result = self._function.apply(*arguments)
                return result
            if dual_level_is_open() and not self._discrete:
                raise NotImplementedError(forward_mode(self.name))
            return self._overload(*arguments)
        if dual_level_is_open() and not self._discrete:
            _refuse_tangents(self.name, arguments)
        if not is_watched() and _is_plain(arguments):
            return self._implementation(*arguments)
        return self._overload(*arguments)

    def fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register what the outputs look like."""
        name = self.name

        @functools.wraps(function)
        def checked(*arguments: Any) -> Any:
            # A tensor without data among others sends torch here, whose results have no values.
            devices = {str(device) for device in _devices(arguments)}
            if len(devices) > 1:
                raise ValueError(
                    f"{name}: expected all tensors on one device, got {', '.join(sorted(devices))}"
                    "; move them with .to"
                )
            return function(*arguments)

        torch.library.register_fake(name, checked, lib=_library)
        return function

    def vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register what a mapped axis means."""
        torch.library.register_vmap(self.name, function, lib=_library)
        self._rule = function
        return function

    def gradient(self, backward: Callable[..., Any], setup: Callable[..., Any]) -> None:
        """Register the derivative: what is kept of a call, and the adjoint."""
        torch.library.register_autograd(self.name, backward, setup_context=setup, lib=_library)
        operator = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(*arguments: Any) -> Any:
                return operator._overload(*arguments)

            @staticmethod
            def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
                assert operator._rule is not None  # every operator of this package has one
                return operator._rule(info, in_dims, *arguments)

            @staticmethod
            def jvp(ctx: Any, *tangents: Any) -> Any:
                raise NotImplementedError(forward_mode(operator.name))

        # How torch wants them; mypy holds them to the signatures of the base class.
        Function.setup_context = staticmethod(setup)  # type: ignore[method-assign]
        Function.backward = staticmethod(backward)  # type: ignore[method-assign]
        self._function = Function


def _devices(arguments: Iterable[Any]) -> Iterable[torch.device]:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument.device
        elif isinstance(argument, (list, tuple)):
            yield from _devices(argument)


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function's products of matrices have the dtype of its tensors."""

    @functools.wraps(function)
    def exact(*arguments: Any) -> Any:
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        if not kinds:
            return function(*arguments)
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*arguments)

    return exact


def operator(
    function: Callable[..., Result], name: str | None = None, *, discrete: bool = False
) -> Operator[Result]:
    """Make a torch operator ``tvm_scan::<name>`` of a function with annotated arguments.

    What is `discrete` gives integers, which have no derivative.
    """
    return Operator(function, name or function.__name__, discrete)
