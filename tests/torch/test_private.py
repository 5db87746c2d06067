"""Parts of torch that are not public: what is relied on, on the version that it was checked on."""

import logging
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests import ROOT  # noqa: E402
from tvm_scan.torch import private  # noqa: E402


def test_the_version_that_was_checked():
    """With another version: run these tests, read what changed, and name it in `CHECKED`."""
    assert ".".join(torch.__version__.split(".")[:2]) == private.CHECKED


def test_private_names_are_in_one_file():
    folder = ROOT / "tvm_scan" / "torch"
    names = ("torch._C", "torch._ops", "torch._decomp", "_subclasses", "_current_level", "_pytree")
    users = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        for name in names
        if name in path.read_text(encoding="utf-8")
    }
    assert users == {"private.py"}


def test_who_looks_on():
    x, seen = torch.ones(2), []

    def look(tensor):
        looks = private.transforms_active(), private.is_watched(), private.dual_level_is_open()
        seen.append((*looks, private.is_mapped(tensor)))
        return tensor

    look(x)
    torch.vmap(look)(x)
    torch.func.vjp(look, x)
    with TorchDispatchMode():
        look(x)
    with TorchFunctionMode():
        look(x)
    with forward_ad.dual_level():
        look(x)
    look(x)
    nothing = (False, False, False, False)
    assert seen == [
        nothing,
        (True, False, False, True),
        (True, False, False, False),
        (False, True, False, False),
        (False, True, False, False),
        (False, True, True, False),
        nothing,
    ]


def test_tensors_that_differ_in_their_values_alone():
    def draw(*changes):
        tensors = [torch.rand(2, 3), torch.rand(1, 4)]
        for number, tensor in changes:
            tensors[number] = tensor
        return tensors

    alike = private.tensor_check(draw())
    assert alike(*draw())
    assert alike(*draw((0, torch.rand(3, 2).mT.contiguous())))
    same = torch.rand(2, 3)
    other = (
        *((0, torch.rand(2, 4)), (0, torch.rand(3, 2).mT), (0, torch.rand(2, 3).double())),
        *((1, torch.rand(1, 4, 1)), (0, torch.rand(2, 3, requires_grad=True)), (0, None), (1, 0.5)),
        *((0, torch.nn.Parameter(same, requires_grad=False)), (0, torch._neg_view(same))),
        (0, same.to_sparse()),
    )
    assert not any(alike(*draw(change)) for change in other)
    assert not private.tensor_check([same, same.clone()])(same, same)
    with torch.inference_mode():
        assert not alike(*draw())


def test_keys_that_are_left_behind_autograd():
    library, seen = torch.library.Library("tvm_scan_private", "FRAGMENT"), []
    library.define("look(Tensor x) -> Tensor")

    def look(keyset, x):
        seen.append(private.only_device_is_left(keyset))
        return x.clone()

    library.impl("look", look, "Autograd", with_keyset=True)
    x = torch.ones(2)
    torch.ops.tvm_scan_private.look(x)
    torch.ops.tvm_scan_private.look(x.to(torch.complex64).conj())
    assert seen == [True, False]


def test_schemas_and_constants():
    assert private.schema_of(torch.ops.aten.add.Tensor).name == "aten::add"
    assert private.schema_of(torch.add) is None
    calls = []

    @private.assumed_constant
    def constant():
        calls.append(1)
        return 3

    compiled = torch.compile(lambda x: x * constant(), backend="eager", fullgraph=True)
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [3, 3]
    assert calls == [1]


def test_tensors_without_data_report_to_their_log():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with private.fake_tensor_mode(ShapeEnv()):
        assert type(torch.ones(2)).__name__ == "FakeTensor"
    assert private.FAKE_TENSOR_LOG in logging.root.manager.loggerDict
    assert torch.ops.aten.addcmul.default in private.core_decompositions()


def test_importing_them_leaves_torchs_compiler_out():
    code = (
        "import sys, tvm_scan.torch.private; "
        "print([n for n in ('torch._dynamo', 'sympy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("inference", [False, True])
def test_a_tensor_on_the_cpu_of_extents_and_strides(inference):
    """As torch's public function allocates it: aligned, of the mode that is on."""
    with torch.inference_mode(inference):
        for shape, dtype in (
            ((2, 3, 4), torch.float32),
            ((0, 2), torch.bfloat16),
            ((), torch.int8),
        ):
            like = torch.empty(shape, dtype=dtype)
            found = private.empty_on_cpu(tuple(shape), like.stride(), dtype)
            assert type(found) is torch.Tensor and found.device == like.device
            assert (found.shape, found.stride()) == (like.shape, like.stride())
            assert found.dtype == dtype and not found.requires_grad
            assert found.is_inference() is inference and found.data_ptr() % 64 == 0
