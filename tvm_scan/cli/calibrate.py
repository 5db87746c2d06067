"""``tvm-scan calibrate``: constants of this machine, measured and kept."""

from __future__ import annotations

from dataclasses import asdict

from tvm_scan.cli.support.terminal import print_json
from tvm_scan.schedules.calibrate import calibrate
from tvm_scan.schedules.machine.cpu_constants import machine_constants

__all__ = ["run_calibration"]


def run_calibration(as_json: bool) -> None:
    """Measure and print; see ``tvm-scan calibrate --help``."""
    path = calibrate()
    found = asdict(machine_constants()[0])
    if as_json:
        print_json({"file": str(path), "constants": found})
        return
    for name, value in found.items():
        print(f"{name:<16}{value:>14.6g}")
    print(f"kept in {path}")
