"""``tvm-scan doctor``: what is installed, what this machine is, what is missing and its fix."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from tvm_scan._guard import check_versions, installed
from tvm_scan.cli.support.failure import UNHEALTHY, CommandError
from tvm_scan.cli.support.options import DATABASE, Json
from tvm_scan.cli.support.terminal import print_json, print_wrapped, visible

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
_GPU_QUERY = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        What.
    state : {"ok", "missing", "optional"}
        ``missing``: tvm_scan does not work without; ``optional``: some commands do not.
    found : str
        What is there.
    fix : str
        The command that mends it; empty where nothing is to be mended.
    """

    name: str
    state: str
    found: str
    fix: str = ""


def command(
    database: Annotated[
        Path | None, typer.Option("--database", help="folder of records to look at, too")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is installed, what this machine is, and the command for what is missing.

    Exit code 1 if tvm_scan cannot work; what only some commands need is no failure.

    Example: tvm-scan doctor
    """
    findings = _versions()
    # A pair that does not fit together can end the process, so nothing is imported then.
    if all(finding.state == OK for finding in findings):
        findings += _machine()
    findings += [*_packages(), *_tools()]
    if all(finding.state == OK for finding in findings[:2]):
        findings += [*_drivers(), *_folders(database)]
    bad = [finding for finding in findings if finding.state == MISSING]
    if as_json:
        print_json({"healthy": not bad, "findings": [asdict(f) for f in findings]})
    else:
        for finding in findings:
            print_wrapped(f"{finding.state:<9} {finding.name:<17} {visible(finding.found)}", 28)
            if finding.fix:
                print(f"{'':<27} {finding.fix}")  # in one piece, to be copied
    if bad:
        raise CommandError(
            f"expected a working installation, found {len(bad)} thing(s) missing: "
            f"{', '.join(f.name for f in bad)}; the commands above mend it",
            UNHEALTHY,
        )


def _pip(what: str) -> str:
    return f"{sys.executable} -m pip install '{what}'"


def _optional(name: str, found: str | None, use: str, fix: str) -> Finding:
    """Finding about something that only some commands need."""
    if found:
        return Finding(name, OK, found)
    return Finding(name, OPTIONAL, f"none; needed for {use}", fix)


def _versions() -> list[Finding]:
    tvm, ffi = installed("apache-tvm"), installed("apache-tvm-ffi")
    fault = check_versions(tvm, ffi)
    state, fix = (OK, "") if fault is None else (MISSING, fault.rpartition("run: ")[2])
    pair = f"apache-tvm {tvm or 'none'}, apache-tvm-ffi {ffi or 'none'}"
    if fault is not None:
        pair = fault.removeprefix("tvm_scan: ").partition("; run:")[0]
    version = platform.python_version()
    known = (3, 10) <= sys.version_info[:2] <= (3, 13)
    python = Finding("python", OK if known else MISSING, f"{version} at {sys.executable}")
    if not known:
        python = Finding(
            "python", MISSING, f"{version}, expected 3.10 to 3.13", "python3.12 -m venv"
        )
    return [python, Finding("tvm", state, pair, fix.replace("python", sys.executable, 1))]


def _machine() -> list[Finding]:
    import tvm

    from tvm_scan import __version__
    from tvm_scan._resources import shipped_manifests
    from tvm_scan.arguments import host_target
    from tvm_scan.schedules.choose.shipped import machine_key
    from tvm_scan.schedules.machine.cpu_constants import machine_constants
    from tvm_scan.schedules.machine.machine import host_cores, host_counting, host_processors

    target = host_target()
    machine = machine_key(target)
    records = [m for m in shipped_manifests() if m["machine"] == machine]
    count = sum(len(manifest["records"]) for manifest in records)
    threads = os.environ.get("TVM_NUM_THREADS", "")
    named = f" (TVM_NUM_THREADS={threads})" if threads else ""
    if not threads and host_cores() < host_processors():
        named = "; TVM's pool takes no more unless TVM_NUM_THREADS says so"
    counting = round(host_counting() * 1e6)
    if counting:
        named += f"; without TVM_NUM_THREADS every call of the pool takes {counting} us more"
    shipped = f"{count} plans for this kind of machine"
    if not records:
        shipped = "none for this kind of machine: default plans are used"
    known = machine_constants()[1] != "estimated"
    calibrate = "" if known else "; tvm-scan calibrate measures them"
    return [
        Finding("tvm_scan", OK, __version__),
        Finding("target", OK, f"{machine['kind']} {machine['processor'] or 'generic'}"),
        Finding("cores", OK, f"{host_cores()} of {os.cpu_count()}{named}"),
        Finding("cpu constants", OK, f"{machine_constants()[1]}{calibrate}"),
        Finding("shipped records", OK, shipped),
        Finding("cuda in tvm", OK, "yes" if tvm.runtime.enabled("cuda") else "no"),
        Finding("cuda device", OK, "yes" if tvm.cuda(0).exist else "none"),
    ]


def _packages() -> list[Finding]:
    wanted = [
        ("torch", ("torch",), "tvm_scan[torch]", "tvm_scan.torch, models as .pt2"),
        ("xgboost", ("xgboost", "xgboost-cpu"), "tvm_scan[tune]", "searches of large spaces"),
        ("tornado", ("tornado",), "tvm_scan[tune]", "tune --tracker"),
        ("onnx", ("onnx",), "tvm_scan[onnx]", "models as .onnx"),
        ("z3", ("z3-solver",), "tvm_scan[proof]", "explain --prove"),
    ]
    return [
        _optional(name, next(filter(None, map(installed, distributions)), None), use, _pip(extra))
        for name, distributions, extra, use in wanted
    ]


def _tools() -> list[Finding]:
    from tvm_scan._toolkit import toolkit_environment

    compiler = shutil.which("g++") or shutil.which("c++")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    pip = toolkit_environment().get("CUDA_PATH")
    cuda = f"{nvcc}, {_last_line([nvcc, '--version'])}" if nvcc else None
    cuda = f"NVRTC from PyPI at {pip}" if cuda is None and pip else cuda
    gpu = _last_line(_GPU_QUERY)
    return [
        _optional("c++ compiler", compiler, "writing libraries", "apt-get install g++"),
        _optional("cuda compiler", cuda, "--target cuda", _pip("tvm_scan[cuda]")),
        Finding("gpu", OK, gpu) if gpu else Finding("gpu", OPTIONAL, "none (nvidia-smi)"),
    ]


def _drivers() -> list[Finding]:
    """Drivers of GPUs for which TVM has no runtime."""
    from tvm_scan.errors import ScanError
    from tvm_scan.schedules.launch import driver_of
    from tvm_scan.schedules.machine.device import DEVICES

    out, rows = [], [row for row in DEVICES.values() if row.driver == row.name]
    for row in rows:
        driver, fix = None, ""
        try:
            driver = driver_of(row).name
        except ScanError as error:
            fix = str(error).rpartition(": ")[2]
        out.append(_optional(f"{row.name} driver", driver, f"verify --target {row.name}", fix))
    return out


def _last_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.strip().splitlines() or [""])[-1]


def _folders(database: Path | None) -> list[Finding]:
    out = []
    if installed("torch") is not None:
        from tvm_scan.torch.store import info

        cache = info()
        size = f"{cache.entries} kernels, {cache.bytes / 1e6:.1f} of {cache.limit / 1e6:.0f} MB"
        if cache.folder is None:
            out.append(Finding("kernel cache", OPTIONAL, "off", "unset TVM_SCAN_CACHE"))
        else:
            out.append(Finding("kernel cache", OK, f"{cache.folder}: {size}"))
    folder = database or DATABASE
    if database is None and not folder.is_dir():
        fix = "tvm-scan tune library:cumsum --shape 4,4096 --budget 6"
        return [*out, Finding("database", OPTIONAL, f"none at {folder}", fix)]
    from tvm_scan.errors import ScanError
    from tvm_scan.meta import RecordStore

    store = RecordStore(folder)
    try:
        good, others = store.usable()
    except ScanError as error:
        state = MISSING if database is not None else OPTIONAL
        return [*out, Finding("database", state, str(error))]
    counts = f"{len(good)} usable records, {len(others)} others, {store.bad_lines} bad lines"
    mend = f"tvm-scan prune {folder} --foreign --bad" if others or store.bad_lines else ""
    return [*out, Finding("database", OK, f"{folder}: {counts}", mend)]
