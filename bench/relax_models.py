"""Models of Hugging Face transformers through tvm_scan: imported, compiled, compared with eager.

Random weights from a seed, two layers, the libraries' own modelling code, nothing downloaded. For
each model: a prefill at several lengths and, where the state can be handed over, a decode of one
token; the largest error against the library's own forward (relative to the largest logit), and
the time to import and compile, and to run, with and without tvm_scan.

    python -m bench.relax_models [--real] [--lengths 32 128] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from bench.limited import within
from bench.model_pages import Row, page
from bench.model_sizes import MODELS, REAL, VOCABULARY
from bench.timing import interleaved, machine
from tvm_scan.relax import FindScans, LegalizeScans, from_exported, get_pipeline

__all__ = ["MODELS", "Decode", "Prefill", "compile_model", "export_model", "main", "make"]

#: Models whose whole state is the convolution's and the recurrence's, per layer.
WITH_STATE = ("mamba", "falcon_mamba", "mamba2")
#: From here on a call is timed once.
_SLOW_MS = 1500.0


def make(name: str, real: bool = False) -> Any:
    """A model with random weights, in float32; its heads small, or of real sizes."""
    import torch
    import transformers

    prefix, options = MODELS[name]
    options = {**options, **(REAL[name] if real else {})}
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**options)
    return getattr(transformers, f"{prefix}ForCausalLM")(config).eval()


def _modules() -> tuple[type, type]:
    import torch
    from transformers import DynamicCache

    class Prefill(torch.nn.Module):
        """Logits of a whole sequence; with `keep`, also the state behind it."""

        def __init__(self, model: Any, keep: bool = False) -> None:
            super().__init__()
            self.model, self.keep = model, keep

        def forward(self, ids: Any) -> Any:
            if not self.keep:
                return (self.model(input_ids=ids, use_cache=False).logits,)
            cache = DynamicCache(config=self.model.config)
            logits = self.model(input_ids=ids, cache_params=cache, use_cache=True).logits
            return (logits, *_states(cache))

    class Decode(torch.nn.Module):
        """Logits of one token, given the state, and the next state."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, *states: Any) -> Any:
            cache = DynamicCache(config=self.model.config)
            for layer, conv, state in zip(cache.layers, states[::2], states[1::2], strict=True):
                layer.lazy_initialization(conv_states=conv, recurrent_states=state)
                layer.conv_states[0], layer.recurrent_states[0] = conv.clone(), state.clone()
                layer.has_previous_state[0] = True
            logits = self.model(input_ids=ids, cache_params=cache, use_cache=True).logits
            return (logits, *_states(cache))

    return Prefill, Decode


def _states(cache: Any) -> list[Any]:
    return [s for c in cache.layers for s in (c.conv_states[0], c.recurrent_states[0])]


def Prefill(model: Any, keep: bool = False) -> Any:
    """A module that runs a whole sequence."""
    return _modules()[0](model, keep)


def Decode(model: Any) -> Any:
    """A module that runs one token from a state."""
    return _modules()[1](model)


def export_model(module: Any, *args: Any) -> Any:
    """``torch.export.export`` without what it warns about itself."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, args)


def compile_model(mod: Any, target: Target) -> Callable[..., list[np.ndarray]]:
    """Compile with the scan passes; called with torch tensors, gives arrays."""
    return _callable(tvm.compile(mod, target=target, relax_pipeline=get_pipeline(target)))


def _callable(built: Any) -> Callable[..., list[np.ndarray]]:
    run = relax.VirtualMachine(built, tvm.cpu())["main"]

    def call(*tensors: Any) -> list[np.ndarray]:
        return [r.numpy() for r in run(*(tvm.runtime.tensor(t.numpy()) for t in tensors))]

    return call


def _families(mod: Any) -> str:
    found = []
    for report in FindScans(LegalizeScans()(mod)):
        found += [a.name for r in report.recurrences for a in r.algebras]
        found += ["delta rule"] * len(report.deltas)
        found += [f"refused ({r.kind.value})" for r in report.refused]
    return ", ".join(sorted(set(found))) or "none"


def measure(
    name: str,
    length: int,
    target: Target,
    plain: bool,
    real: bool = False,
    tell: Callable[[Row], None] = lambda _: None,
) -> Row:
    """Run one case; ``tell`` is called with what there is before plain TVM has its turn."""
    import torch

    module = Prefill(make(name, real))
    ids = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        (want,) = (t.numpy() for t in module(ids))
    program = export_model(module, ids)
    start = time.perf_counter()
    mod = from_exported(program)
    call = compile_model(mod, target)
    compile_s = time.perf_counter() - start
    (got,) = call(ids)
    calls = {"ours": lambda: call(ids)}
    tvm_compile_s, says = None, "not measured"
    error = float(np.abs(got - want).max() / np.abs(want).max())
    row = Row(name, length, _families(mod), error, compile_s, _milliseconds(calls)["ours"],
              None, None, says)  # fmt: skip
    if plain:
        tell(replace(row, tvm_says="not within the time"))
        frontend = import_module("tvm.relax.frontend.torch")
        pipeline = import_module("tvm.relax.backend.cpu_generic.pipeline")
        start = time.perf_counter()
        try:
            theirs = frontend.from_exported_program(program)
            default = pipeline.get_default_pipeline(target)
            other = _callable(tvm.compile(theirs, target=target, relax_pipeline=default))
            np.testing.assert_allclose(other(ids)[0], want, rtol=2e-4, atol=2e-4)
            tvm_compile_s, says = time.perf_counter() - start, "same result"
            calls["theirs"] = lambda: other(ids)
        except Exception as failed:
            says = f"{type(failed).__name__}: {str(failed).splitlines()[0][:120]}"
    if not plain:
        return row
    times = _milliseconds(calls)
    return replace(
        row,
        run_ms=times["ours"],
        tvm_compile_s=tvm_compile_s,
        tvm_run_ms=times.get("theirs"),
        tvm_says=says,
    )


def _milliseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians in turns; of calls that take seconds, one each."""
    once = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        once[name] = (time.perf_counter() - start) * 1e3
    if max(once.values()) > _SLOW_MS:
        return once
    return {name: times.median * 1e3 for name, times in interleaved(calls).items()}


def measure_decode(
    name: str, target: Target, length: int = 24, real: bool = False
) -> tuple[float, float]:
    """Error of one token after a prefill, and of the same token in one long prefill."""
    import torch

    model = make(name, real)
    ids = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        long = Prefill(model)(ids)[0].numpy()[:, -1]
        first = Prefill(model, keep=True)
        eager_first = first(ids[:, :-1])
        eager = Decode(model)(ids[:, -1:], *eager_first[1:])[0].numpy()[:, -1]
    prefill = compile_model(from_exported(export_model(first, ids[:, :-1])), target)
    _, *states = (torch.from_numpy(a.copy()) for a in prefill(ids[:, :-1]))
    program = export_model(Decode(model), ids[:, -1:], *states)
    decode = compile_model(from_exported(program), target)
    got = decode(ids[:, -1:], *states)[0][:, -1]
    scale = float(np.abs(long).max())
    return float(np.abs(got - eager).max()) / scale, float(np.abs(got - long).max()) / scale


def main(argv: list[str] | None = None) -> int:
    """Print the table, and write it where asked, again after every model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lengths", nargs="+", type=int, help="32 and 128; 64 with --real")
    parser.add_argument("--plain-up-to", type=int, default=128, help="longest length for plain TVM")
    parser.add_argument("--real", action="store_true", help="real sizes of heads and states")
    parser.add_argument(
        "--seconds", type=float, default=75, help="for each model and length, and each decode"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    decodes: dict[str, tuple[float, float]] = {}
    host = {**machine(Target.from_device("cpu")), "transformers": metadata.version("transformers")}
    missing = 0
    for name in args.models:
        for length in args.lengths or ([64] if args.real else [32, 128]):
            plain = length <= args.plain_up_to
            row = within(args.seconds, _prefill_case, name, length, plain, args.real)
            missing += row is None
            rows += [row] if row is not None else []
            print(row or f"{name} {length}: nothing within {args.seconds:g} s", flush=True)
        if name in WITH_STATE:
            errors = within(args.seconds, _decode_case, name, args.real)
            missing += errors is None
            decodes |= {name: errors} if errors is not None else {}
            print(name, "decode: error to eager, to one prefill:", errors, flush=True)
        if args.json:
            payload = {"machine": host, "rows": [asdict(r) for r in rows], "decode": decodes}
            args.json.write_text(json.dumps(payload, indent=1) + "\n")
        if args.markdown:
            args.markdown.write_text(page(rows, decodes, host, args.real))
    return 1 if missing else 0


def _prefill_case(
    tell: Callable[[Any], None], name: str, length: int, plain: bool, real: bool
) -> None:
    tell(measure(name, length, Target.from_device("cpu"), plain, real, tell))


def _decode_case(tell: Callable[[Any], None], name: str, real: bool) -> None:
    tell(measure_decode(name, Target.from_device("cpu"), real=real))


if __name__ == "__main__":
    sys.exit(main())
