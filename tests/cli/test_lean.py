"""A command starts without torch, which takes longer to import than TVM does."""

import subprocess
import sys

PROGRAM = """
import sys
from tvm_scan.cli import main
sys.argv = ["tvm-scan", "explain", "library:cumsum"]
try:
    main()
except SystemExit as done:
    assert not done.code
assert "tvm" in sys.modules and "torch" not in sys.modules
try:
    import torch
except ImportError:
    print("no torch installed")
else:
    import tvm_scan.torch as ts
    print(ts.cumsum(torch.ones(3), 0).tolist())
"""


def test_a_command_leaves_torch_out_and_torch_works_afterwards():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("[1.0, 2.0, 3.0]", "no torch installed")
