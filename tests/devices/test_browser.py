"""The compiler of browsers takes every shader: it alone holds WGSL to uniform control flow."""

import json

import pytest

from tests.devices.table import program
from tests.devices.test_table import some
from tests.support.browser import WEBGPU, Browser, NoBrowser, find_chromium, served

COMPILE = """(async sources => {
  const adapter = navigator.gpu && await navigator.gpu.requestAdapter();
  if (!adapter) return null;
  const device = await adapter.requestDevice(), out = [];
  for (const code of sources) {
    const module = device.createShaderModule({code});
    const {messages} = await module.getCompilationInfo();
    const errors = messages.filter(m => m.type == "error").map(m => `${m.lineNum}: ${m.message}`);
    out.push(errors.join(" "));
  }
  return out;
})"""


def test_every_kernel_compiles(tmp_path):
    triples = [triple for triple in some() if triple[0] == "webgpu"]
    kernels = [(t, k) for t in triples for k in program(*t).kernels.values()]
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
