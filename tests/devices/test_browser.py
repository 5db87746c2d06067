"""The compiler of browsers takes every shader: it alone holds WGSL to uniform control flow."""

import functools
import http.server
import json
import threading

import pytest

from tests.devices.table import program
from tests.devices.test_table import some
from tests.support.browser import Browser, NoBrowser, find_chromium

#: WebGPU without a GPU: on a Vulkan driver in software.
FLAGS = (
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan,VulkanFromANGLE",
    "--use-angle=vulkan",
)
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


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_every_kernel_compiles(tmp_path):
    triples = [triple for triple in some() if triple[0] == "webgpu"]
    kernels = [(t, k) for t in triples for k in program(*t).kernels.values()]
    (tmp_path / "index.html").write_text("<!doctype html><title>shaders</title>")
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        # WebGPU is there for addresses of this machine, and not for files.
        with Browser(find_chromium(), FLAGS) as browser:
            page = browser.open(f"http://127.0.0.1:{server.server_address[1]}/index.html")
            said = page.evaluate(f"{COMPILE}({json.dumps([k.source for _, k in kernels])})")
    except NoBrowser as error:
        pytest.skip(str(error))
    finally:
        server.shutdown()
        server.server_close()
    if said is None:
        pytest.skip("expected WebGPU in Chromium, found no adapter: apt-get install chromium")
    wrong = {str((*t, k.name)): text for (t, k), text in zip(kernels, said, strict=True) if text}
    assert not wrong, wrong
