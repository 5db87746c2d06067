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
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from bench.model_sizes import MODELS, REAL, VOCABULARY
from bench.timing import interleaved, machine
from tvm_scan.relax import FindScans, LegalizeScans, from_exported, get_pipeline

__all__ = ["MODELS", "Decode", "Prefill", "compile_model", "export_model", "main", "make"]

#: Models whose whole state is the convolution's and the recurrence's, per layer.
WITH_STATE = ("mamba", "falcon_mamba", "mamba2")


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


@dataclass(frozen=True)
class Row:
    """One model at one length; seconds, and errors relative to the largest logit."""

    model: str
    length: int
    scans: str
    error: float
    compile_s: float
    run_ms: float
    tvm_compile_s: float | None
    tvm_run_ms: float | None
    tvm_says: str


def _families(mod: Any) -> str:
    found = []
    for report in FindScans(LegalizeScans()(mod)):
        found += [a.name for r in report.recurrences for a in r.algebras]
        found += [f"refused ({r.kind.value})" for r in report.refused]
    return ", ".join(sorted(set(found))) or "none"


def measure(name: str, length: int, target: Target, plain: bool, real: bool = False) -> Row:
    """Run one case."""
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
    if plain:
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
        except Exception as error:
            says = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    times = interleaved(calls)
    return Row(
        name,
        length,
        _families(mod),
        float(np.abs(got - want).max() / np.abs(want).max()),
        compile_s,
        times["ours"].median * 1e3,
        tvm_compile_s,
        times["theirs"].median * 1e3 if "theirs" in times else None,
        says,
    )


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


def page(
    rows: list[Row], decodes: dict[str, tuple[float, float]], host: dict[str, Any], real: bool
) -> str:
    """The tables as a Markdown page."""
    names = list(dict.fromkeys(row.model for row in rows))
    sizes = ["", "| model | sizes |", "|---|---|"] if real else []
    for name in names if real else []:
        listed = ", ".join(f"{key} {value}" for key, value in REAL[name].items())
        sizes.append(f"| {name} | {listed} |")
    lines = [
        "# Models through tvm_scan",
        "",
        f"Measured on {host['date']} on {host['cores']} cores of {host['cpu']}, TVM {host['tvm']}, "
        f"transformers {host['transformers']}, by `python -m bench.relax_models"
        f"{' --real' if real else ''}`. Two layers, "
        "random weights, float32. Errors are against the library's own forward, relative to the "
        "largest logit. Compile time is import and compilation; `TVM` is the same through TVM's "
        "importer and default pipeline without tvm_scan. The machine is shared, so times vary.",
        "",
        "| model | length | scans | error | compile s | run ms | TVM compile s | TVM run ms "
        "| TVM |",
        "|---|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        theirs = "" if r.tvm_compile_s is None else f"{r.tvm_compile_s:.1f}"
        run = "" if r.tvm_run_ms is None else f"{r.tvm_run_ms:.2f}"
        lines.append(
            f"| {r.model} | {r.length} | {r.scans} | {r.error:.1e} | {r.compile_s:.1f} "
            f"| {r.run_ms:.2f} | {theirs} | {run} | {r.tvm_says} |"
        )
    lines += sizes
    lines += ["", "One token after a prefill of 23:", ""]
    lines += ["| model | error to eager decode | error to one long prefill |", "|---|---:|---:|"]
    lines += [f"| {name} | {a:.1e} | {b:.1e} |" for name, (a, b) in decodes.items()]
    return "\n".join([*lines, ""])


def main(argv: list[str] | None = None) -> int:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--plain-up-to", type=int, default=128, help="longest length for plain TVM")
    parser.add_argument("--real", action="store_true", help="real sizes of heads and states")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args(argv)
    target = Target.from_device("cpu")
    rows, decodes = [], {}
    for name in args.models:
        for length in args.lengths:
            rows.append(measure(name, length, target, length <= args.plain_up_to, args.real))
            print(rows[-1], flush=True)
        if name in WITH_STATE:
            decodes[name] = measure_decode(name, target, real=args.real)
            print(name, "decode: error to eager, to one prefill:", *decodes[name], flush=True)
    host = {**machine(target), "transformers": metadata.version("transformers")}
    if args.json:
        payload = {"machine": host, "rows": [asdict(r) for r in rows], "decode": decodes}
        args.json.write_text(json.dumps(payload, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(page(rows, decodes, host, args.real))
    return 0


if __name__ == "__main__":
    sys.exit(main())
