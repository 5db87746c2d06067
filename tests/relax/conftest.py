"""Relax passes, importers, pipelines and artifacts."""

import contextlib

from tests.support import quick_export
from tests.support.tiers import Folder

with contextlib.suppress(ImportError):  # without torch its tests are skipped
    quick_export.install()

FOLDER = Folder(
    quick=(
        "test_passes.py",
        "test_torch.py::test_cumulative_operators",
        "test_onnx_forms.py",
    ),
    full=(
        "test_models.py::test_prefill[jamba-affine]",
        "test_models.py::test_prefill_and_decode_are_one_long_prefill[recurrent_gemma-*",
        "test_models.py::test_prefill_and_decode_are_one_long_prefill[jamba-*",
        "test_models.py::test_prefill_and_decode_are_one_long_prefill[bamba-*",
        "test_models.py::test_prefill_and_decode_are_one_long_prefill[rwkv-*",
        "test_neighbours.py::test_a_selective_scan_is_one_kernel[(2, 32*",
        "test_neighbours.py::test_a_selective_scan_is_one_kernel[(3, 17*",
    ),
    alike={
        "test_models.py::test_prefill": 3,
        "test_operators.py::test_gradients": 2,
        "test_roll.py::test_a_loop_is_rolled": 2,
        "test_torch_repairs.py": 2,
        "test_own.py::test_a_model_with_a_delta_rule": 2,
        "test_roundtrip.py::test_every_function_with_a_dynamic_length": 2,
        "test_same_bits.py::test_the_bits_of_relax_are_those_of_torch": 2,
    },
    gpu=(
        "test_associative.py::test_a_declared_operator_on_a_gpu",
        "test_engines.py::test_cuda",
        "test_export.py::test_cross_compilation_to_cuda",
        "test_extremum.py::test_every_cuda_plan_is_torchs",
        "test_fuse.py::test_on_a_gpu",
        "test_onnx_state.py::test_linear_attention_on_a_gpu",
        "test_operators.py::test_in_the_default_cuda_pipeline",
        "test_passes.py::test_default_cuda_pipeline",
        "test_passes.py::test_as_a_dlight_rule_before_tvms_own",
        "test_short.py::test_cuda",
        "test_torch.py::test_scan_on_cuda",
        "test_torch.py::test_a_refused_loop_runs_on_cuda_all_the_same",
    ),
)
