"""The command line ``tvm-scan``: run, explain, demo, compile.

Nothing heavy is imported before a command runs, so that ``tvm-scan --help`` answers at once.
"""

__all__ = ["main"]


def main() -> None:
    """Entry point of ``tvm-scan``."""
    from tvm_scan._lean import leave_torch_out
    from tvm_scan.cli.app import run

    leave_torch_out()
    run()
