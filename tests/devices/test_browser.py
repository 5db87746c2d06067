"""The compiler of browsers takes every shader: it alone holds WGSL to uniform control flow."""

import json
import re

import pytest
from tvm.target import Target

from tests.devices.table import ALGEBRAS, listed, loop_of, program
from tests.devices.test_table import some
from tests.support.browser import WEBGPU, Browser, NoBrowser, find_chromium, served
from tests.support.drivers import emit
from tvm_scan import ScanPlan, parallelize
from tvm_scan.errors import PlanError

SUBGROUPS = Target({"kind": "webgpu", "supports_subgroups": True}, host="llvm")
SHUFFLES = ScanPlan.parse(
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=3, block_tree=warp)"
)
COMPILE = """(async sources => {
  const adapter = navigator.gpu && await navigator.gpu.requestAdapter();
  if (!adapter) return null;
  const requiredFeatures = ["subgroups"].filter(feature => adapter.features.has(feature));
  const device = await adapter.requestDevice({requiredFeatures}), out = [];
  for (const code of sources) {
    if (code.includes("enable subgroups;") && !requiredFeatures.length) continue;
    const module = device.createShaderModule({code});
    const {messages} = await module.getCompilationInfo();
    const errors = messages.filter(m => m.type == "error").map(m => `${m.lineNum}: ${m.message}`);
    out.push(errors.join(" "));
  }
  return out;
})"""


def with_subgroups(algebra):
    """Kernels of a warp tree, for a target that says it has subgroups."""
    return emit(parallelize(loop_of(algebra), SUBGROUPS, SHUFFLES), SUBGROUPS)


def shuffling():
    """Algebras that a warp tree runs there: those that another tree does, of what is shuffled."""
    return [a for a in ALGEBRAS if listed("webgpu", "serial_tiles, kogge_stone", a) is None]


def test_kernels_shuffle_where_the_target_says_so():
    for algebra in shuffling():
        (kernel,) = with_subgroups(algebra).kernels.values()
        assert "enable subgroups;" in kernel.source
        assert len(re.findall(r"= subgroupShuffleUp\(", kernel.source)) >= 5, algebra
        # Between the totals of the warps and their readers alone.
        assert kernel.source.count("workgroupBarrier()") <= 4, algebra
    without = Target({"kind": "webgpu"}, host="llvm")
    with pytest.raises(PlanError, match="webgpu with no shuffles, in warps of 1; use another"):
        parallelize(loop_of("affine"), without, SHUFFLES)


def test_every_kernel_compiles(tmp_path):
    triples = [triple for triple in some() if triple[0] == "webgpu"]
    kernels = [(t, k) for t in triples for k in program(*t).kernels.values()]
    # Those that no adapter here has subgroups of the right size for.
    kernels += [((a,), k) for a in shuffling() for k in with_subgroups(a).kernels.values()]
    (tmp_path / "index.html").write_text("<!doctype html><title>shaders</title>")
    try:
        with served(tmp_path) as address, Browser(find_chromium(), WEBGPU) as browser:
            page = browser.open(f"{address}/index.html")
            said = page.evaluate(f"{COMPILE}({json.dumps([k.source for _, k in kernels])})")
    except NoBrowser as error:
        pytest.skip(str(error))
    if said is None:
        pytest.skip("expected WebGPU in Chromium, found no adapter: apt-get install chromium")
    wrong = {str((*t, k.name)): text for (t, k), text in zip(kernels, said, strict=True) if text}
    assert not wrong, wrong
