"""Artifacts: written here, run by the runtime alone in a fresh process, checked when loaded."""

import json
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.target import Target

from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import library
from tvm_scan.artifact import ArtifactError, load
from tvm_scan.errors import ScanError
from tvm_scan.relax import export

CPU = Target.from_device("cpu")

RUN = """
import sys
import numpy as np
from tvm_scan.artifact import load

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("there is no torch here")

sys.meta_path.insert(0, NoTorch())
model = load(sys.argv[1])
data = np.load(sys.argv[2])
result = model(data["a"], data["x"])
np.save(sys.argv[3], np.from_dlpack(result))
assert "tvm" not in sys.modules and "torch" not in sys.modules
assert "libtvm_compiler" not in open("/proc/self/maps").read()
"""


def module(length=None):
    """relu(linear_recurrence(sigmoid(a), x)) of symbolic length."""
    length = tirx.Var("length", "int64") if length is None else length
    builder = relax.BlockBuilder()
    kind = relax.TensorType([3, length], "float32")
    a, x = relax.Var("a", kind), relax.Var("x", kind)
    known = length if isinstance(length, int) else None
    with builder.function("main", [a, x]):
        with builder.dataflow():
            gate = builder.emit(relax.op.sigmoid(a))
            name = builder.add_func(library.linear_recurrence(3 if known else None, known), "scan")
            h = builder.emit(relax.call_tir(name, [gate, x], kind))
            out = builder.emit_output(relax.op.nn.relu(h))
        builder.emit_func_output(out)
    return builder.get()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    export(module(), CPU, path)
    return path


def expected(a, x):
    gate = 1 / (1 + np.exp(-a.astype("float64")))
    return np.maximum(library.linear_recurrence_reference(gate, x)[0], 0)


def test_a_fresh_process_runs_it_without_the_compiler(folder, tmp_path):
    a, x = np.random.default_rng(0).standard_normal((2, 3, 5000)).astype("float32")
    np.savez(tmp_path / "in.npz", a=a, x=x)
    out = tmp_path / "out.npy"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(tmp_path / "in.npz"), str(out)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(out), expected(a, x), 1e-4, 1e-4)


def test_the_manifest_says_what_it_is(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["functions"]["main"] == {
        "inputs": [
            {"name": "a", "shape": [3, "length"], "dtype": "float32"},
            {"name": "x", "shape": [3, "length"], "dtype": "float32"},
        ],
        "outputs": {"shape": [3, "length"], "dtype": "float32"},
    }
    (scan,) = manifest["scans"]
    assert scan["function"] == "scan"
    assert scan["families"] == ["affine"]
    assert scan["plan"].startswith("cpu/")
    assert manifest["device"] == "cpu"
    assert set(manifest["versions"]) == {"tvm_scan", "apache-tvm", "apache-tvm-ffi"}


def with_manifest(folder, tmp_path, **changes):
    for name in ("manifest.json", "model.so"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest.update(changes)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "expected a manifest of format 1, got 99; export the model again"),
        ({"device": "abacus"}, "expected a whole manifest in .*, got one whose device cannot"),
        ({"library": None, "versions": "x"}, "one whose library, versions cannot be used"),
        ({"machine": "z80"}, "expected a machine of kind z80, found .*; export it for this"),
        ({"versions": {"apache-tvm": 1}}, "one whose versions cannot be used"),
        ({"functions": {"main": {}}}, "one whose inputs of main cannot be used; export the model"),
        ({"functions": {"main": {"inputs": [{"name": "a"}]}}}, "one whose inputs of main cannot"),
        ({"functions": {"main": []}}, "one whose inputs of main cannot be used"),
        ({"library": "../model.so"}, r"expected the name of a library in .*, got '\.\./model\.so'"),
        ({"library": "/usr/lib/libc.so"}, "expected the name of a library in .*, got '/usr/lib"),
        ({"library": ".."}, "expected the name of a library"),
        ({"sha256": "0"}, "expected the library with sha256 0, found .*; copy the folder again"),
        ({"library": "gone.so"}, "expected the library .*gone.so, found nothing; copy the whole"),
        (
            {"versions": {"apache-tvm": "0.11.0", "apache-tvm-ffi": "0.1.14"}},
            "expected apache-tvm 0.11.0, found .*; install apache-tvm==0.11.0",
        ),
    ],
)
def test_what_does_not_fit_is_said(folder, tmp_path, changes, message):
    with pytest.raises(ArtifactError, match=message):
        load(with_manifest(folder, tmp_path, **changes))


def test_a_library_beside_the_folder_is_not_loaded(folder, tmp_path):
    (tmp_path / "inner").mkdir()
    inner = with_manifest(folder, tmp_path / "inner", library="../model.so")
    (inner / "model.so").rename(tmp_path / "model.so")
    with pytest.raises(ArtifactError, match="expected the name of a library in"):
        load(inner)


def test_a_folder_without_a_model(folder, tmp_path):
    for wrong in (None, 3, b"model"):
        with pytest.raises(ArtifactError, match="expected the path of a folder, got"):
            load(wrong)
    for text in ("[" * 100_000, "[]", "null"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ArtifactError, match="expected a manifest as JSON"):
            load(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match=r"expected manifest.json in .*, found none"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("no json")
    with pytest.raises(ArtifactError, match="expected a manifest as JSON"):
        load(tmp_path)
    with pytest.raises(ArtifactError, match="expected TVM's runtime library, found nothing at"):
        load(folder, runtime=tmp_path / "libtvm_runtime.so")


def test_calls_are_checked(folder):
    model = load(folder)
    a = np.zeros((3, 8), "float32")
    assert np.from_dlpack(model(a, a)).shape == (3, 8)
    with pytest.raises(ArtifactError, match=r"expected 2 inputs \(a, x\), got 1; pass one each"):
        model(a)
    with pytest.raises(ArtifactError, match=r"expected x as float32 of shape \(3, 8\), got float3"):
        model(a, a[:, :-1].copy())
    with pytest.raises(ArtifactError, match=r"expected a as float32 .*, got float64 of shape"):
        model(a.astype("float64"), a)
    with pytest.raises(ArtifactError, match="expected one of main, got other"):
        model(a, a, function="other")


def test_arrays_anywhere_in_memory(folder):
    """NumPy aligns to 16 bytes, or less where a file is mapped; vector loads would fault."""
    model = load(folder)
    size, rng = 3 * 8 * 4, np.random.default_rng(0)
    whole = [np.frombuffer(bytearray(size + 64), np.uint8) for _ in range(2)]
    for offset in (4, 8, 16, 32):
        a, x = (w[offset : offset + size].view("float32").reshape(3, 8) for w in whole)
        a[:], x[:] = rng.random((2, 3, 8))
        np.testing.assert_allclose(np.from_dlpack(model(a, x)), expected(a, x), 1e-5)
    with pytest.raises(ArtifactError, match=r"expected a contiguous, got strides \(16, 2\); copy"):
        model(np.zeros((3, 16), "float32")[:, ::2], x)
    empty = np.zeros((3, 0), "float32")
    assert np.from_dlpack(model(empty, empty)).shape == (3, 0)


def test_arrays_of_every_kind(folder):
    """What can be read is read, without a change; the rest is named."""
    torch = pytest.importorskip("torch")
    model = load(folder)
    a, x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype("float32")
    want = expected(a, x)
    sealed = a.copy()
    sealed.flags.writeable = False
    row = np.broadcast_to(x[:, :1], x.shape)
    for given in ((sealed, x), (a, sealed), (torch.tensor(a), x), (row, row)):
        plain = [np.asarray(part) for part in given]
        got = np.from_dlpack(model(*given))
        np.testing.assert_allclose(got, expected(*plain), 1e-5, 1e-6)
    assert not sealed.flags.writeable
    negative = torch._neg_view(torch.tensor(a))
    assert negative.is_neg()
    np.testing.assert_allclose(
        np.from_dlpack(model(negative, negative)), expected(-a, -a), 1e-5, 1e-6
    )
    for named in (model(a, x=x), model(a=a, x=x), model(x=x, a=a)):
        np.testing.assert_allclose(np.from_dlpack(named), want, 1e-5, 1e-6)
    begin = r"^run: expected a as (an array of )?float32 of shape \(3, length\), got"
    for wrong, found in {
        "big-endian": (a.astype(">f4"), "ndarray of >f4 .*native byte order"),
        "masked": (np.ma.masked_array(a, a > 0), r"a MaskedArray; fill .* numpy\.ma\.filled"),
        "scalar": (3.0, "float; pass a NumPy array"),
        "NumPy's scalar": (np.float32(3), "float32; pass a NumPy array"),
        "no dimensions": (np.array(3.0, "float32"), r"float32 of shape \(\)"),
        "none": (None, "None; pass a NumPy array"),
        "list": (a.tolist(), "list; pass a NumPy array"),
        "bytes": (a.tobytes(), "bytes; pass a NumPy array"),
        "objects": (a.astype(object), "ndarray of object .*DLPack only supports"),
        "text": (a.astype(str), "ndarray of <U32"),
        "dates": (a.astype("datetime64[s]"), "ndarray of datetime64"),
        "long": (a.astype(np.longdouble), "ndarray of float128|another dtype"),
        "complex": (a.astype("complex64"), r"another dtype of shape \(3, 8\); convert it"),
        "torch's complex": (torch.tensor(a).to(torch.complex64).conj(), ".*convert it"),
        "nowhere": (torch.empty(3, 8, device="meta"), ".*meta.*convert it"),
        "sparse": (torch.tensor(a).to_sparse(), ".*storage.*convert it"),
    }.values():
        with pytest.raises(ArtifactError, match=begin + " " + found):
            model(wrong, x)
    for call, found in (
        (lambda: model(a, x, y=x), "2 and y"),
        (lambda: model(a, a=x), "1 and a"),
        (lambda: model(x=x), "0 and x"),
        (lambda: model(), "0"),
    ):
        with pytest.raises(
            ArtifactError, match=rf"expected 2 inputs \(a, x\), got {found}; pass one"
        ):
            call()
    with pytest.raises(ArtifactError, match=r"expected one of main, got \['main'\]"):
        model(a, x, function=["main"])


def test_inputs_that_are_no_tensors(tmp_path):
    tensor = relax.TensorType([3], "float32")
    for kind in (relax.TupleType([tensor, tensor]), relax.TensorType(dtype="float32")):
        pair, builder = relax.Var("pair", kind), relax.BlockBuilder()
        with builder.function("main", [pair]):
            builder.emit_func_output(pair)
        with pytest.raises(ScanError, match="expected tensors of known rank as inputs of main"):
            export(builder.get(), CPU, tmp_path / "model")


def test_extents_without_names(tmp_path):
    x, builder = relax.Var("x", relax.TensorType(dtype="float32", ndim=2)), relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    export(builder.get(), "cpu", tmp_path)
    value = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(np.from_dlpack(load(tmp_path)(value)), value)


def test_export_refuses_what_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ScanError, match=r"expected a folder at .*, found a file"):
        export(module(), CPU, tmp_path / "file")
    with pytest.raises(ScanError, match=r"expected a folder at .*file, found a file"):
        export(module(), CPU, tmp_path / "file" / "below")
    with pytest.raises(ScanError, match="expected the linker no-such-linker, found none"):
        export(module(), CPU, tmp_path, linker="no-such-linker")


def test_cross_compilation_to_aarch64(tmp_path):
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]})
    export(module(300), target, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["machine"] == "aarch64"
    if manifest["library"] == "model.tar":  # there is no linker for it here
        with tarfile.open(tmp_path / "model.tar") as archive:
            members = [m for m in archive.getmembers() if m.name.endswith(".o")]
            objects = [archive.extractfile(m).read(20) for m in members]
    else:
        objects = [(tmp_path / "model.so").read_bytes()[:20]]
    assert objects
    for header in objects:
        assert header[:4] == b"\x7fELF"
        assert int.from_bytes(header[18:20], "little") == 183, "EM_AARCH64"
    if platform.machine() != "aarch64":
        with pytest.raises(ArtifactError, match="expected a machine of kind aarch64, found"):
            load(tmp_path)


def test_cross_compilation_to_cuda(tmp_path):
    """The host code is for this machine; the kernels are CUDA for sm_90."""
    path = export(module(300), CUDA_TARGET, tmp_path)
    manifest = json.loads(Path(path).read_text())
    assert manifest["device"] == "cuda"
    assert manifest["scans"][0]["plan"].startswith("cuda/")
    assert "sm_90" in manifest["target"]
    assert (tmp_path / "model.so").stat().st_size > 0
