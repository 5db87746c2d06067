"""Models are compiled for every kind of GPU: their recurrences are ours, whatever the kind."""

import re

import pytest
import tvm
from tvm import relax
from tvm.target import Target
from tvm.tirx import PrimFunc

from tests.relax.test_short import module as serving_module
from tests.support.drivers import emit
from tests.support.drivers.amdgpu import without_tools
from tests.support.tiers import longer
from tvm_scan.relax import get_pipeline
from tvm_scan.relax.pipeline import scheduled_operators
from tvm_scan.schedules.machine.device import DEVICES, device_of

KINDS = [row.name for row in DEVICES.values() if row.is_gpu and row.is_served]
KINDS.remove("cuda")


def target_of(kind):
    return Target(kind, host={"kind": "llvm", "opt-level": 0})


def sources(built):
    """Text of the kernels of an executable."""
    modules, texts = list(built.mod.imports), []
    while modules:
        module = modules.pop()
        modules += list(module.imports)
        if module.kind in (*KINDS, "hip"):
            texts.append(module.inspect_source("asm" if module.kind in ("rocm", "hip") else ""))
    return "\n".join(texts)


def compiled(mod, kind):
    target = target_of(kind)
    if device_of(target).generator:  # TVM compiles no module for it
        functions = scheduled_operators(mod, target, None).functions.values()
        programs = [emit(func, target) for func in functions if isinstance(func, PrimFunc)]
        return "\n".join(k.source for one in programs for k in one.kernels.values())
    with target, without_tools():
        return sources(tvm.compile(mod, target=target, relax_pipeline=get_pipeline(target)))


def cumulative(operator, dtype):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3, 1000], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(operator(x, axis=1))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("kind", KINDS)
def test_cumulative_operators_are_scans(kind):
    for operator in (relax.op.cumsum, relax.op.cumprod):
        text = compiled(cumulative(operator, "float32"), kind)
        assert re.search("shared0|s_barrier|ds_bpermute", text), text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", longer(["five"], ["five", "six"]))
def test_serving_kernels_keep_their_form_for_one_step(kind, name):
    target = target_of(kind)
    with target:
        mod = get_pipeline(target)(serving_module(name))
    body = str(
        mod["wkv"].script() if "wkv" in [v.name_hint for v in mod.get_global_vars()] else mod
    )
    assert "once" in body
    assert compiled(serving_module(name), kind)


def layer_of(name):
    """A layer of a model of transformers, as torch.export has it."""
    pytest.importorskip("transformers", reason="transformers is missing: pip install transformers")
    import torch

    from bench.model_cases import make

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            model = make(name)
            self.layer = (model.backbone.layers if name == "mamba" else model.rwkv.blocks)[0]
            self.width = model.config.hidden_size

        def forward(self, x):
            out = self.layer(x)
            return out[0] if isinstance(out, tuple) else out

    layer = Layer().eval()
    return torch.export.export(layer, (torch.zeros(1, 16, layer.width),))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["mamba", "rwkv"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_models_compile(kind, name):
    from tvm_scan.relax import FindScans, LegalizeScans, from_exported

    mod = from_exported(layer_of(name))
    assert any(report.recurrences for report in FindScans(LegalizeScans()(mod)))
    assert compiled(mod, kind)
