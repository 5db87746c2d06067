"""Models without a recurrence come out of the passes as they went in, whatever they sum up."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.target import Target

from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan.relax import FindScans, scan_passes

TARGETS = {"cpu": Target.from_device("cpu"), "cuda": CUDA_TARGET}


class Writer:
    """Emits operators into a function; its weights and inputs are constants."""

    def __init__(self, builder, dtype):
        self.builder, self.dtype = builder, dtype

    def __call__(self, operator, *args, **options):
        return self.builder.emit(operator(*args, **options))

    def param(self, *shape, dtype=None):
        return relax.const(np.ones(shape, dtype or self.dtype))


def resnet(e):
    def convolved(x, channels, made, size, stride):
        weight = e.param(made, channels, size, size)
        options = {"strides": stride, "padding": size // 2, "out_dtype": "float32"}
        y = e(op.nn.conv2d, x, weight, **options)
        scales = [e.param(made, dtype="float32") for _ in range(4)]
        norm = e(op.nn.batch_norm, y, *scales, axis=1, training=False)
        return e(op.astype, e(relax.TupleGetItem, norm, 0), e.dtype)

    x = convolved(e.param(2, 3, 16, 16), 3, 8, 7, 2)
    x = e(op.nn.max_pool2d, e(op.nn.relu, x), pool_size=3, strides=2, padding=1)
    y = e(op.nn.relu, convolved(x, 8, 16, 3, 2))
    y = e(op.add, convolved(y, 16, 16, 3, 1), convolved(x, 8, 16, 1, 2))
    y = e(op.mean, e(op.nn.relu, y), [2, 3])
    y = e(op.matmul, y, e.param(16, 10))
    return [e(op.nn.softmax, y), e(op.argmax, y, 1)]


def transformer(e):
    x = e(op.take, e.param(50, 16), e.param(14, dtype="int64"), axis=0)
    x = e(op.reshape, x, (2, 7, 16))
    normed = e(op.nn.layer_norm, x, e.param(16), e.param(16), axes=[-1])
    heads = [e(op.reshape, e(op.matmul, normed, e.param(16, 16)), (2, 7, 2, 8)) for _ in range(3)]
    mixed = e(op.nn.attention, *heads, causal_mask="TopLeft")
    x = e(op.add, x, e(op.matmul, e(op.reshape, mixed, (2, 7, 16)), e.param(16, 16)))
    normed = e(op.nn.rms_norm, x, e.param(16), axes=[-1])
    inner = e(op.nn.gelu, e(op.matmul, normed, e.param(16, 32)))
    x = e(op.add, x, e(op.matmul, inner, e.param(32, 16)))
    logits = e(op.matmul, x, e.param(16, 50))
    scores = e(op.nn.log_softmax, logits)
    return [scores, e(op.variance, x, [1, 2]), e(op.einsum, [x, x], "bij,bik->jk")]


def unet(e):
    x = e.param(2, 3, 16, 16)
    a = e(op.nn.conv2d, x, e.param(8, 3, 3, 3), padding=1)
    a = e(op.nn.group_norm, a, e.param(8), e.param(8), num_groups=2, channel_axis=1, axes=[2, 3])
    b = e(op.nn.conv2d, e(op.nn.silu, a), e.param(16, 8, 3, 3), strides=2, padding=1)
    b = e(op.nn.conv2d, b, e.param(16, 4, 3, 3), padding=1, groups=4)
    b = e(op.nn.conv2d, b, e.param(16, 1, 3, 3), padding=1, groups=16)
    up = e(op.nn.conv2d_transpose, b, e.param(16, 8, 2, 2), strides=2)
    y = e(op.nn.conv2d, e(op.concat, [a, up], 1), e.param(4, 16, 1, 1))
    small = e(op.nn.avg_pool2d, y, pool_size=2, strides=2)
    large = e(op.image.resize2d, small, (16, 16), layout="NCHW", method="linear")
    low, high = e(op.min, y, [0, 2, 3]), e(op.max, y)
    return [e(op.add, y, large), e(op.nn.adaptive_avg_pool2d, y, (1, 1)), low, high]


def lowered(make, dtype):
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            results = builder.emit_output(relax.Tuple(make(Writer(builder, dtype))))
        builder.emit_func_output(results)
    return relax.transform.LegalizeOps()(builder.get())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("make", [resnet, transformer, unet])
def test_untouched(make, dtype):
    mod = lowered(make, dtype)
    fuse = [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    for form in (mod, tvm.ir.transform.Sequential(fuse)(mod)):
        assert len(form.functions) > 10
        assert FindScans(form) == []
        for target in TARGETS.values():
            tvm.ir.assert_structural_equal(scan_passes(target)(form), form)
