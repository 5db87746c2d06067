"""Effect of a slice of time on the state before it, by function; see `tvm_scan.torch.distributed`.

An entry of `CARRIES` runs a function on this process's slice: it says what is gathered of every
slice, how that of the slices before combines to the state that this one starts from, and what
the function does with that state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import SMALL_INTEGERS, axis_of, check, check_tensors, wide, widened
from tvm_scan.torch.compat import selective_scan_fn
from tvm_scan.torch.functions import cumulative as functions
from tvm_scan.torch.functions.convolution import causal_conv1d
from tvm_scan.torch.functions.cumulative import Extremum
from tvm_scan.torch.functions.delta import delta_rule, gated_delta_rule, kda, rwkv7
from tvm_scan.torch.functions.gated import hgrn, rglru
from tvm_scan.torch.functions.linear import linear_recurrence, number_like
from tvm_scan.torch.functions.mamba import selective_scan
from tvm_scan.torch.functions.matrix import gla, rwkv6
from tvm_scan.torch.functions.ssd import ssd, terms
from tvm_scan.torch.sequence.delta import run_delta
from tvm_scan.torch.sequence.exchange import Exchange

_HALVES = (torch.float16, torch.bfloat16)


# Linear recurrences: h -> total h + last.


def _linear(total_of: Callable[[dict[str, Any]], Tensor], *unread: str) -> Callable[..., Any]:
    """Make the runner of a function with `h0` and `return_last`; last states read no `unread`."""

    def run(fn: Callable[..., Any], arguments: dict[str, Any], exchange: Exchange) -> Any:
        h0, without = arguments["h0"], dict.fromkeys(("h0", *unread))
        # First: the function itself checks the arguments.
        _, last = fn(**{**arguments, **without, "return_last": True})
        start = torch.zeros_like(last) if h0 is None else _start(str(fn.__name__), h0, last)
        total = total_of(arguments).to(start.dtype).expand(last.shape)
        stops = torch.zeros_like(total)
        if arguments.get("reset") is not None:
            stops = stops.masked_fill(_stopped(arguments, last), 1)
        part = torch.stack((total, last.to(start.dtype), stops))
        carry = exchange.carry(part, start, _entered)
        return fn(**{**arguments, "h0": carry})

    return run


def _entered(state: Tensor, part: Tensor) -> Tensor:
    """The state after a slice; where it has a reset, nothing of the state before it comes."""
    total, last, stops = part.unbind()
    return total * torch.where(stops == 0, state, 0) + last


def _stopped(arguments: dict[str, Any], last: Tensor) -> Tensor:
    """Mask of where a slice has a reset, in a shape that broadcasts to that of the state."""
    reset: Tensor = arguments["reset"].bool()
    if "dim" in arguments:  # of any shape that broadcasts to the inputs'
        return reset.expand(arguments["x"].shape).any(arguments["dim"])
    return reset.any(1).reshape(-1, *(1,) * (last.dim() - 1))


def _start(owner: str, h0: Tensor, last: Tensor) -> Tensor:
    check_tensors(owner, x=last, h0=h0)
    expected, shape = f"h0 that broadcasts to {tuple(last.shape)}", tuple(h0.shape)
    try:
        h0 = h0.expand(last.shape)
    except RuntimeError:
        check(False, owner, expected, shape, "give it one entry per state")
    return h0.to(torch.promote_types(last.dtype, h0.dtype))


def _linear_total(arguments: dict[str, Any]) -> Tensor:
    a, x, reset = arguments["a"], arguments["x"], arguments["reset"]
    if not isinstance(a, Tensor):
        a = number_like(x, a)
    gates = a.expand(x.shape)
    if reset is not None:
        gates = gates.masked_fill(_stopped(arguments, gates).unsqueeze(arguments["dim"]), 1)
    # A product of many halves is one of float32.
    return (gates.float() if gates.dtype in _HALVES else gates).prod(arguments["dim"])


def _rglru_total(arguments: dict[str, Any]) -> Tensor:
    gate = wide(arguments["recurrence_gate"]).sigmoid()
    log_a = -arguments["scale"] * F.softplus(wide(arguments["decay"])) * gate
    return _unread(log_a, arguments["reset"]).sum(1).exp()


def _hgrn_total(arguments: dict[str, Any]) -> Tensor:
    bound = arguments["lower_bound"]
    bound = wide(bound) if isinstance(bound, Tensor) else bound
    return (bound + (1 - bound) * wide(arguments["forget_gate"]).sigmoid()).prod(1)


def _selective_total(arguments: dict[str, Any]) -> Tensor:
    """``exp(A sum(dt))``: no product of gates is formed."""
    u, delta, A, bias = (arguments[name] for name in ("u", "delta", "A", "delta_bias"))
    delta, *_ = widened(delta, u)
    dt = delta if bias is None else delta + bias.to(delta.dtype).unsqueeze(1)
    dt = F.softplus(dt) if arguments["delta_softplus"] else dt
    total: Tensor = A * _unread(dt, arguments["reset"]).sum(2).unsqueeze(2)
    return total.exp()


def _matrix_total(gate: str) -> Callable[[dict[str, Any]], Tensor]:
    return lambda arguments: wide(arguments[gate]).sum(1).exp().unsqueeze(3)


def _ssd_total(arguments: dict[str, Any]) -> Tensor:
    x, dt, A = widened(*(arguments[name] for name in ("x", "dt", "A")))
    gates, _ = terms(
        x, dt, A, *(arguments[name] for name in ("dt_bias", "dt_softplus", "dt_limit"))
    )
    return _unread(gates, arguments["reset"]).sum(1).exp()[..., None, None]


def _unread(logarithms: Tensor, reset: Tensor | None) -> Tensor:
    """Logarithms of gates, with 0 in rows that have a reset: nothing reads the total there."""
    if reset is None:
        return logarithms
    rows = reset.bool().any(1)
    return logarithms.masked_fill(rows.reshape(-1, *(1,) * (logarithms.dim() - 1)), 0)


_run_selective = _linear(_selective_total, "D", "z")


def _run_selective_fn(fn: Callable[..., Any], arguments: dict[str, Any], exchange: Exchange) -> Any:
    named = {**arguments, "return_last": arguments["return_last_state"], "h0": None, "reset": None}
    del named["return_last_state"]
    return _run_selective(selective_scan, named, exchange)


# Cumulative functions: the carry is one more element, before the slice.


def _cumulative(
    name: str, total_of: Callable[[Tensor, int], Tensor], neutral: float, combine: Any
) -> Callable[..., Any]:
    def run(fn: Callable[..., Any], arguments: dict[str, Any], exchange: Exchange) -> Any:
        check_tensors(name, x=arguments["x"])
        x, dim = arguments["x"], axis_of(name, arguments["x"], arguments["dim"])
        check(x.dim() > 0, name, "x with a time axis", "a scalar", "unsqueeze it")
        x = x if arguments.get("dtype") is None else x.to(arguments["dtype"])
        if name == "logcumsumexp":
            check(x.is_floating_point(), name, "floats", x.dtype, "convert it")
        elif not (x.is_floating_point() or x.is_complex()):
            x = x.to(torch.int64)
        # The carry of halves is not rounded.
        work = x.float() if x.dtype in _HALVES else x
        part = total_of(work, dim)
        carry = exchange.carry(part, torch.full_like(part, neutral), combine)
        options = {n: arguments[n] for n in ("reverse", "exclusive") if n in arguments}
        parts = (carry.unsqueeze(dim), work)
        y = fn(torch.cat(parts[::-1] if exchange.reverse else parts, dim), dim, **options)
        return y.narrow(dim, 0 if exchange.reverse else 1, x.shape[dim]).to(x.dtype)

    return run


def _run_extremum(
    fn: Callable[..., Any], arguments: dict[str, Any], exchange: Exchange
) -> Extremum:
    """Run a cumulative extremum: of equal values, in all slices, the latest of the scan counts."""
    name, x, reverse = str(fn.__name__), arguments["x"], exchange.reverse
    is_max, kind = name == "cummax", x.dtype
    x = x.to(torch.int32) if kind in SMALL_INTEGERS else x
    values, indices = fn(x, arguments["dim"], reverse=reverse)
    dim = axis_of(name, x, arguments["dim"])
    check(x.dim() > 0, name, "x with a time axis", "a scalar", "unsqueeze it")
    if x.is_floating_point():
        worst = float("-inf") if is_max else float("inf")
    else:
        limits = torch.iinfo(x.dtype)
        worst = limits.min if is_max else limits.max

    def is_newer(value: Tensor, top: Tensor) -> Tensor:
        newer = value >= top if is_max else value <= top
        return newer | value.isnan()

    end = 0 if reverse else -1
    if x.shape[dim]:
        last, where = values.select(dim, end), indices.select(dim, end)
    else:
        last, where = x.sum(dim).to(x.dtype), indices.sum(dim)
    length = torch.full_like(where, x.shape[dim])
    where_and_length, lasts = exchange.gather(torch.stack((where, length))), exchange.gather(last)
    lengths = where_and_length[:, 1]
    starts = lengths.cumsum(0) - lengths
    top, index = torch.full_like(last, worst), torch.full_like(where, -1)
    for other in exchange.order():
        newer = is_newer(lasts[other], top) & (lengths[other] > 0)
        newer = newer & exchange.is_before(other)
        top = torch.where(newer, lasts[other], top)
        index = torch.where(newer, where_and_length[other, 0] + starts[other], index)
    top, index = top.unsqueeze(dim), index.unsqueeze(dim)
    newer = is_newer(values, top)
    indices = indices + starts[exchange.rank].unsqueeze(dim)
    values = torch.where(newer, values, top).to(kind)
    return Extremum(values, torch.where(newer, indices, index))


def _log_total(x: Tensor, dim: int) -> Tensor:
    """The last of the function itself: its gradient knows infinities."""
    if not x.shape[dim]:
        return x.sum(dim) + float("-inf")
    return functions.logcumsumexp(x, dim).select(dim, -1)


def _log_add(left: Tensor, right: Tensor) -> Tensor:
    return functions.logcumsumexp(torch.stack((left, right)), 0)[1]


# The short convolution: the last inputs before the slice, of one process or several.


def _run_convolution(fn: Callable[..., Any], arguments: dict[str, Any], exchange: Exchange) -> Any:
    x, weight, start = (arguments[n] for n in ("x", "weight", "initial_state"))
    fix = "mark nothing: sequences that are packed are for one process"
    check(arguments["seq_idx"] is None, "causal_conv1d", "no seq_idx", "some", fix)
    fn(**{**arguments, "x": x[..., :0]})  # checks the arguments
    before = weight.shape[1] - 1
    tail = x[..., max(0, x.shape[2] - before) :]
    counts = exchange.gather(torch.tensor([tail.shape[2]], device=x.device)).flatten().tolist()
    parts = exchange.gather(F.pad(tail, (before - tail.shape[2], 0)))
    carry = x.new_zeros(*x.shape[:2], before) if start is None else start
    for other in exchange.order():
        part = parts[other, ..., before - counts[other] :]
        joined = torch.cat((carry, part), 2)[..., part.shape[2] :]
        # Through the part also where it is not used, as `Exchange.carry` does.
        mine = torch.full((), exchange.is_before(other), device=x.device)
        carry = torch.where(mine, joined, carry)
    return fn(**{**arguments, "initial_state": carry})


#: By function: ``(function, its arguments by name, exchange) -> result``.
CARRIES: Mapping[Any, Callable[[Callable[..., Any], dict[str, Any], Exchange], Any]] = {
    causal_conv1d: _run_convolution,
    delta_rule: run_delta,
    functions.cummax: _run_extremum,
    functions.cummin: _run_extremum,
    functions.cumprod: _cumulative("cumprod", torch.prod, 1, torch.mul),
    functions.cumsum: _cumulative("cumsum", torch.sum, 0, torch.add),
    functions.logcumsumexp: _cumulative("logcumsumexp", _log_total, float("-inf"), _log_add),
    gated_delta_rule: run_delta,
    gla: _linear(_matrix_total("g")),
    hgrn: _linear(_hgrn_total),
    kda: run_delta,
    linear_recurrence: _linear(_linear_total),
    rglru: _linear(_rglru_total),
    rwkv6: _linear(_matrix_total("w")),
    rwkv7: run_delta,
    selective_scan: _run_selective,
    selective_scan_fn: _run_selective_fn,
    ssd: _linear(_ssd_total, "D", "z"),
}
