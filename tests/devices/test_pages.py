"""The page of `tvm-scan compile --target webgpu` in a headless Chromium: right, quick, readable."""

import json
import re
import sys
import time

import html5lib
import numpy as np
import pytest

from tests.devices.test_models import layer_of
from tests.support.browser import WEBGPU, Browser, NoBrowser, find_chromium, served
from tests.support.tiers import longer
from tvm_scan.cli.app import run
from tvm_scan.cli.support.mamba_layer import MambaLayer

#: Few enough arrays for a kernel of WebGPU: the gate and the direct path are other operators.
SELECTIVE = """
from tvm_scan import library
scan = library.selective_scan(1, {channels}, None, 4, layout="{layout}", has_D=False, has_z=False)
"""
MAMBA = """
import numpy as np
from tvm import relax, tirx
from tvm_scan.cli.support.mamba_layer import MambaLayer
from tvm_scan.library import selective_scan

layer = MambaLayer(8, 4)
d, N, rank, op = layer.d_inner, layer.d_state, layer.dt_rank, relax.op
weights = {**layer.weights, "A": -np.exp(layer.weights["A_log"])}
builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
tokens = relax.Var("tokens", relax.TensorType([1, n], "int32"))


def weight(name, of=lambda array: array):
    return relax.const(np.ascontiguousarray(of(weights[name]), "float32"), "float32")


def product(x, name):
    return builder.emit(op.matmul(x, weight(name, np.transpose)))


def parts(x, where):
    tuple_of = builder.emit(op.split(x, where, axis=-1))
    return [builder.emit(tuple_of[i]) for i in range(len(tuple_of.ty.fields))]


with builder.function("main", [tokens]):
    with builder.dataflow():
        embedded = builder.emit(op.take(weight("embedding"), tokens, axis=0))
        x, z = parts(product(embedded, "in_proj"), 2)
        x = op.nn.conv1d(op.permute_dims(x, [0, 2, 1]), weight("conv", lambda w: w[:, None]),
                         padding=[3, 0], groups=d)
        x = op.add(x, weight("conv_bias", lambda b: b[:, None]))
        u = builder.emit(op.nn.silu(op.permute_dims(x, [0, 2, 1])))
        low, B, C = parts(product(u, "x_proj"), [rank, rank + N])
        loop = selective_scan(1, d, None, N, layout="bld", has_D=False, has_z=False)
        args = [u, product(low, "dt_proj"), weight("A"), B, C, weight("dt_bias")]
        y = builder.emit(relax.call_tir(
            builder.add_func(loop, "scan"), args, relax.TensorType([1, n, d], "float32")))
        y = op.multiply(op.add(y, op.multiply(weight("D"), u)), op.nn.silu(z))
        out = builder.emit_output(op.matmul(builder.emit(y), weight("out_proj", np.transpose)))
    builder.emit_func_output(out)
mod = builder.get()
del builder
"""
TEXT = b"A person writes a recurrence the way the maths is written."
MILLION = 1 << 20
STATE = """({...document.body.dataset, said: document.getElementById('adapter').textContent,
  loadEvent: performance.getEntriesByType('navigation')[0].loadEventEnd,
  rows: [...document.querySelectorAll('#rows tr')].map(
    row => [...row.cells].map(cell => cell.textContent))})"""


def compile_page(folder, name, *options):
    """The folder of a page; a name that is none of the library's is one of the files above."""
    what = folder / f"{name}.pt2" if (folder / f"{name}.pt2").exists() else f"library:{name}"
    if name in FILES:
        (folder / f"{name}.py").write_text(FILES[name])
        what = folder / f"{name}.py"
    patch = pytest.MonkeyPatch()
    arguments = [
        "tvm-scan",
        "compile",
        what,
        "--target",
        "webgpu",
        "--out",
        folder / name,
        *options,
    ]
    patch.setattr(sys, "argv", list(map(str, arguments)))
    with pytest.raises(SystemExit, match=r"^0$"):
        run()
    patch.undo()
    return folder / name


FILES = {
    "selective": SELECTIVE.format(channels=1, layout="bdl"),
    "mamba": MAMBA,
    "half": SELECTIVE.format(channels=1, layout="bdl").replace("4, layout", '4, "float16", layout'),
}
SHUFFLES = "cuda/serial_tiles(threads_per_block=64, items_per_thread=4, block_tree=warp)"
LIBRARY = {"cumsum": ("--shape", "1,n"), "linear_recurrence": ("--shape", "1,n")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The address of a folder with a page for each name."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("selective", "mamba"):
        compile_page(folder, name)
    for name, options in LIBRARY.items():
        compile_page(folder, name, *options)
    with served(folder) as address:
        yield folder, address


@pytest.fixture(scope="module")
def browser():
    try:
        with Browser(find_chromium(), WEBGPU) as found:
            yield found
    except NoBrowser as error:
        pytest.skip(str(error))


def wait(page, *states):
    """What a page says once it is in one of some states."""
    end = time.monotonic() + 150
    while time.monotonic() < end:
        said = page.evaluate(STATE)
        if said.get("state") in (*states, "failed"):
            return said
        time.sleep(0.05)
    raise AssertionError(said)


def measured(browser, address, steps):
    """What a page says after it has run some lengths, on WebGPU."""
    page = browser.open(f"{address}/index.html?steps={','.join(map(str, steps))}")
    said = wait(page, "done")
    if said["said"].startswith("The loop alone"):
        pytest.skip(f"expected WebGPU in Chromium, found none: {said['said']}")
    assert page.errors == []
    return page, said


@pytest.mark.parametrize("name", ["cumsum", "linear_recurrence", "selective"])
def test_a_recurrence_is_right_at_a_million_steps(pages, browser, name):
    _, address = pages
    steps = longer([37, MILLION], [1, 37, 1000, 1 << 16, MILLION])
    _, said = measured(browser, f"{address}/{name}", steps)
    assert said["state"] == "done" and "WebGPU on " in said["said"], said
    assert ("swiftshader" in said["said"]) == ("a driver in software" in said["said"]), said
    assert [int(row[0].replace(",", "")) for row in said["rows"]] == steps
    for _, loop, gpu, error, verdict in said["rows"]:
        assert verdict == "right" and float(loop) > 0 and float(gpu) > 0, said["rows"]
        assert float(error) < 1e-4
    # From a local server: all files are there, and the document is ready.
    assert 0 < float(said["loadEvent"]) < 2000 and int(said["loaded"]) < 2000, said


def test_one_mamba_layer_on_text(pages, browser):
    _, address = pages
    page, said = measured(browser, f"{address}/mamba", [48])
    assert said["rows"][0][-1] == "right", said
    loop, kernels = page.evaluate(
        f"""(async () => {{
          const tokens = Int32Array.from({list(TEXT)}), sizes = {{ n: tokens.length }};
          const loop = scan.loop({{ tokens }}, sizes, {{ wide: true }});
          const kernels = await scan.run({{ tokens }}, sizes);
          return [[...loop.output], [...kernels.output]];
        }})()"""
    )
    want = MambaLayer(8, 4).reference(np.frombuffer(TEXT, np.uint8)[None])
    scale = np.abs(want).max()
    for got, bound in ((loop, 1e-6), (kernels, 3e-5)):
        assert np.abs(np.reshape(got, want.shape) - want).max() < bound * scale


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["mamba", "rwkv"])
def test_layers_of_exported_models(tmp_path, browser, name):
    program = layer_of(name)
    import torch

    torch.export.save(program, tmp_path / f"{name}-layer.pt2")
    folder = compile_page(tmp_path, f"{name}-layer")
    with served(folder) as address:
        _, said = measured(browser, address, [16])
    assert [row[-1] for row in said["rows"]] == ["right"], said


def test_a_wrong_result_is_seen(pages, browser):
    _, address = pages
    page, _ = measured(browser, f"{address}/cumsum", [64])
    said = page.evaluate(
        """(async () => {
          const sizes = { length: 300 }, inputs = scan.inputs(sizes);
          const want = scan.loop(inputs, sizes, { wide: true });
          const got = await scan.run(inputs, sizes);
          const before = scan.compare(got, want, sizes)[0];
          got.Y[299] += 0.01;
          return [before, scan.compare(got, want, sizes)[0], want.Y[0] === inputs.X[0]];
        })()"""
    )
    assert said[0]["right"] and not said[1]["right"] and said[2], said


def test_bad_arguments_are_named(pages, browser):
    _, address = pages
    page, _ = measured(browser, f"{address}/cumsum", [64])
    calls = {
        "scan.run({}, {length: 9})": "expected an array for the input X, got none; give it",
        "scan.run({X: new Float32Array(8)}, {length: 9})": "of 9 cells, got Float32Array of 8; con",
        "scan.loop({X: new Float64Array(9)}, {length: 9})": "got Float64Array of 9; convert it",
        "scan.loop({X: new Float32Array(9)}, {})": "a value for the size length, got none; give it",
    }
    for call, message in calls.items():
        said = page.evaluate(
            f"(async () => {{ try {{ await {call}; }} catch (e) {{ return e.message; }} }})()"
        )
        assert message in said, (call, said)


def test_a_page_without_webgpu_says_so_and_runs_the_loop(pages):
    _, address = pages
    try:
        with Browser(find_chromium()) as browser:
            page = browser.open(f"{address}/linear_recurrence/index.html?steps=37,1000")
            said = wait(page, "done")
    except NoBrowser as error:
        pytest.skip(str(error))
    assert said["said"].startswith("The loop alone: "), said
    assert "WebGPU" in said["said"]
    assert [(row[0], row[2:]) for row in said["rows"]] == [("37", [""] * 3), ("1,000", [""] * 3)]
    assert all(float(row[1]) > 0 for row in said["rows"])


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("half", (), "the adapter lacks shader-f16"),
        (
            "linear_recurrence",
            ("--target", '{"kind": "webgpu", "supports_subgroups": true}', "--plan", SHUFFLES),
            r"the adapter's subgroups have \d+ to \d+ threads, not 32|the adapter lacks subgroups",
        ),
    ],
)
def test_an_adapter_that_lacks_a_feature_is_said_and_the_loop_is_run(
    tmp_path, browser, name, options, why
):
    folder = (
        compile_page(tmp_path, name, "--shape", "1,n", *options)
        if options
        else (compile_page(tmp_path, name))
    )
    features = json.loads((folder / "manifest.json").read_text())["features"]
    assert features == ["subgroups" if options else "shader-f16"]
    with served(folder) as address:
        page = browser.open(f"{address}/index.html?steps=99")
        said = wait(page, "done")
    if said["said"].startswith("WebGPU on"):
        assert said["rows"][0][-1] == "right", said
        return
    assert re.search(f"The loop alone: ({why}|.*no adapter)", said["said"]), said
    assert float(said["rows"][0][1]) > 0 and said["rows"][0][2:] == [""] * 3


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALLEST = """(() => { const svg = document.querySelector('.chart svg');
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')];
  return [scale * Math.min(...texts.map(t => parseFloat(getComputedStyle(t).fontSize))),
    Math.max(...texts.map(t => t.getBoundingClientRect()).map(
      r => Math.max(box.left - r.left, r.right - box.right, r.bottom - box.bottom)))]; })()"""
#: How much of the table's longest rows is out of sight.
TABLE = """(() => { const row = document.querySelector('#rows tr');
  ["1,048,576", "0.00508", "10.5", "1.0e-7", "right"].forEach(
    (text, i) => row.cells[i].textContent = text);
  const box = document.querySelector('.wide'); return box.scrollWidth - box.clientWidth; })()"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
#: What Chromium itself logs where a page asks for WebGPU and no driver is there.
NO_DRIVER = "Failed to create WebGPU Context Provider"


@pytest.mark.parametrize("view", ["light", "dark", "narrow"])
def test_a_page_is_readable(pages, browser, view):
    folder, address = pages
    path = folder / "linear_recurrence" / "index.html"
    html5lib.HTMLParser(strict=True).parse(path.read_text(encoding="utf-8"))
    page = browser.open(
        f"{address}/linear_recurrence/index.html?steps=64,256,1024",
        width=400 if view == "narrow" else 1200,
        dark=view == "dark",
    )
    said = wait(page, "done")
    alone = said["said"].startswith("The loop alone")
    assert len(said["rows"]) == 3
    assert [error for error in page.errors if not (alone and error == NO_DRIVER)] == []
    assert all(url.startswith((address, "data:")) for url in page.requests), page.requests
    assert page.evaluate(OVERFLOW) == 0
    assert page.evaluate(TABLE) == 0
    smallest, outside = page.evaluate(SMALLEST)
    assert smallest > 9 and outside < 1, (smallest, outside)
    assert (page.evaluate(BACKGROUND) == "rgb(255, 255, 255)") == (view != "dark")
