"""The command line ``tvm-scan``.

Read ``app`` first: the table of commands, how one is found and run, how it fails. Then any command:
each is the file of its name (``import_`` for import), its options in front. Two rooms stand behind
them: ``support`` (what commands share) and ``draw`` (pictures and pages).

A command's file imports TVM inside its functions alone, so that help, completion, a wrong path and
a table of records are answered at once.
"""


def main() -> None:
    """Entry point of ``tvm-scan``."""
    from tvm_scan._lean import leave_torch_out
    from tvm_scan.cli.app import run

    leave_torch_out()
    run()
