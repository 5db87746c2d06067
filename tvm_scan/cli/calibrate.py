"""``tvm-scan calibrate``: constants of this machine, measured and kept."""

from __future__ import annotations

from dataclasses import asdict

from tvm_scan.cli.support.options import Json
from tvm_scan.cli.support.terminal import print_json


def command(as_json: Json = False) -> None:
    """Measure this machine, so that default plans are chosen by what it does.

    Takes under a minute; nothing else should run meanwhile.

    Example: tvm-scan calibrate
    """
    from tvm_scan.schedules.calibration.calibrate import calibrate
    from tvm_scan.schedules.machine.cpu_constants import machine_constants

    path = calibrate()
    constants = asdict(machine_constants()[0])
    if as_json:
        print_json({"file": str(path), "constants": constants})
        return
    for name, value in constants.items():
        print(f"{name:<16}{value:>14.6g}")
    print(f"kept in {path}")
