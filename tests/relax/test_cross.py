"""Cross-compilation: what is written for machines that this one is not, read back byte by byte."""

import json
import platform
import re
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.support import forks
from tests.support.cusim.nvcc import nvcc_path
from tvm_scan.artifact import ArtifactError, load

AARCH64, CUDA, X86 = 183, 190, 62

#: In a process of its own, without the simulated device: as on a machine that has no GPU at all.
EXPORT = """
import sys
from tvm import relax
from tvm.target import Target
from tvm_scan import library
from tvm_scan.relax import export

builder = relax.BlockBuilder()
kind = relax.TensorType([3, 300], "float32")
a, x = relax.Var("a", kind), relax.Var("x", kind)
scan = library.linear_recurrence(3, 300).without_attr("global_symbol")
with builder.function("main", [a, x]):
    with builder.dataflow():
        name = builder.add_func(scan, "scan")
        gate = builder.emit(relax.op.sigmoid(a))
        out = builder.emit_output(relax.call_tir(name, [gate, x], kind))
    builder.emit_func_output(out)
arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
cuda = {"kind": "cuda", "arch": "sm_90", **limits}
for folder, target in {
    "arm": Target(arm),
    "cuda": Target(cuda, host={"kind": "llvm"}),
    "both": Target(cuda, host=arm),
}.items():
    export(builder.get(), target, f"{sys.argv[1]}/{folder}")
"""


def machine_of(content):
    """e_machine of an ELF file's header, which must be a whole one of 64 bits."""
    assert content[:4] == b"\x7fELF"
    assert (content[4], content[5]) == (2, 1), "64 bits, little-endian"
    kind, machine, version = struct.unpack_from("<HHI", content, 16)
    assert version == 1
    assert kind in (1, 2, 3), "relocatable, executable or shared"
    return machine


def symbols_of(content):
    """Names of the functions that an ELF file defines, read from its symbol tables."""
    at, size, count = (
        *struct.unpack_from("<Q", content, 0x28),
        *struct.unpack_from("<HH", content, 0x3A),
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, at + i * size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        strings = sections[link][4]
        for place in range(offset, offset + length, entry):
            name, info, _, section = struct.unpack_from("<IBBH", content, place)
            if info & 15 == 2 and section:  # STT_FUNC, defined here
                names.add(content[strings + name : content.index(b"\0", strings + name)].decode())
    return names


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross")
    words = [sys.executable, "-c", EXPORT, str(folder)]
    done = forks.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def contents(folder):
    """The manifest, and every object file of the library."""
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / manifest["library"]
    if path.suffix == ".so":
        return manifest, [path.read_bytes()]
    with tarfile.open(path) as archive:
        members = [archive.extractfile(m) for m in archive.getmembers() if m.isfile()]
        return manifest, [m.read() for m in members]


@pytest.mark.parametrize("name", ["arm", "both"])
def test_aarch64(exported, name):
    manifest, objects = contents(exported / name)
    assert manifest["machine"] == "aarch64"
    assert {machine_of(o) for o in objects} == {AARCH64}
    defined = set().union(*(symbols_of(o) for o in objects))
    assert any("scan" in symbol for symbol in defined), sorted(defined)
    if readelf := shutil.which("readelf"):
        (exported / "object.o").write_bytes(objects[0])
        said = subprocess.run(
            [readelf, "-h", str(exported / "object.o")], capture_output=True, text=True, check=True
        )
        assert "AArch64" in said.stdout
    if platform.machine() != "aarch64":
        with pytest.raises(ArtifactError, match=r"of kind aarch64, found .*; export it"):
            load(exported / name)


@pytest.mark.parametrize("name", ["cuda", "both"])
def test_sm_90(exported, name, tmp_path):
    manifest, objects = contents(exported / name)
    assert manifest["device"] == "cuda"
    assert json.loads(manifest["target"])["arch"] == "sm_90"
    (kernel,) = manifest["kernels"]
    assert manifest["scans"][0]["plan"].startswith("cuda/")
    if nvcc_path() is None:
        assert manifest["kernel_format"] == "cuda"
        assert any(f"{kernel}(" in s for o in objects if (s := cuda_source(o)) is not None)
        pytest.skip("nvcc is missing: the kernels are text, that sm_90 takes them is not checked")
    assert manifest["kernel_format"] == "cubin"
    assert not any(cuda_source(o) for o in objects), "the text of the kernels is still there"
    (cubin,) = (found for o in objects for found in elf_files_inside(o))
    assert machine_of(cubin) == CUDA
    assert struct.unpack_from("<I", cubin, 48)[0] >> 8 & 0xFF == 90, "sm_90 in the ELF flags"
    assert kernel in symbols_of(cubin)


def elf_files_inside(content):
    """ELF files that lie in the data of another one."""
    return [content[m.start() :] for m in re.finditer(rb"\x7fELF\x02\x01", content) if m.start()]


#: A driver, TVM's runtime and no compiler: what a machine that only runs models has.
LOAD = """
import ctypes, sys
from tests.support.cusim import _toolchain
for library in _toolchain.build_runtime():
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
from tvm_scan.artifact import load
print(load(sys.argv[1]))
assert "tvm" not in sys.modules and "libtvm_compiler" not in open("/proc/self/maps").read()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is for x86-64")
def test_kernels_load_without_a_compiler(exported, tmp_path):
    if nvcc_path() is None:
        pytest.skip("nvcc is missing: the kernels are text")

    def loaded(folder):
        return subprocess.run(
            [sys.executable, "-c", LOAD, str(folder)],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )

    done = loaded(exported / "cuda")
    assert done.returncode == 0, done.stderr
    shutil.copytree(exported / "cuda", tmp_path / "text")
    manifest = json.loads((tmp_path / "text" / "manifest.json").read_text())
    (tmp_path / "text" / "manifest.json").write_text(
        json.dumps({**manifest, "kernel_format": "cuda"})
    )
    assert re.search("found their text, and no compiler; export", loaded(tmp_path / "text").stderr)


def cuda_source(content):
    """The text of the kernels that lies in a library, to be compiled where it is loaded."""
    found = re.search(rb'[\x09\x0a\x20-\x7e]*extern "C" __global__[\x09\x0a\x20-\x7e]*', content)
    return found and found.group().decode()


def test_a_machine_without_cuda_says_what_is_missing(exported):
    if platform.machine() != "x86_64" or Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine may have a CUDA driver")
    program = "import sys; from tvm_scan.artifact import load; load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(exported / "cuda")], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert re.search(r"ArtifactError: load: expected libtvm_runtime_cuda\S* to load", done.stderr)
