"""What a scan of states takes in: broadcasts, permutations, reshapes and what a step repeats."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T
from tvm.target import Target

from tests.relax.test_fuse import calls, run
from tvm_scan.relax import FindScans, FuseScans, LegalizeScans

CPU = Target.from_device("cpu")


def states(batch, channels, length, size):
    """``S[t] = a S[t-1] + x``, ``y[t] = sum_n S c``, with time first, as importers write it."""

    @T.prim_func(private=True, s_tir=True)
    def loop(
        a: T.Buffer((T.int64(length), T.int64(batch), T.int64(channels), T.int64(size)), "float32"),
        x: T.Buffer((T.int64(length), T.int64(batch), T.int64(channels), T.int64(size)), "float32"),
        c: T.Buffer((T.int64(length), T.int64(batch), T.int64(size)), "float32"),
        last: T.Buffer((T.int64(batch), T.int64(channels), T.int64(size)), "float32"),
        y: T.Buffer((T.int64(length), T.int64(batch), T.int64(channels), T.int64(1)), "float32"),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8})
        for i, j, k in T.grid(T.int64(batch), T.int64(channels), T.int64(size)):
            last[i, j, k] = T.float32(0)
        for t in range(T.int64(length)):
            for i, j, k in T.grid(T.int64(batch), T.int64(channels), T.int64(size)):
                last[i, j, k] = a[t, i, j, k] * last[i, j, k] + x[t, i, j, k]
            for i, j in T.grid(T.int64(batch), T.int64(channels)):
                for k in range(T.int64(size)):
                    if k == T.int64(0):
                        y[t, i, j, T.int64(0)] = T.float32(0)
                    y[t, i, j, T.int64(0)] = y[t, i, j, T.int64(0)] + last[i, j, k] * c[t, i, k]

    return loop


def shapes_of(batch, channels, length, size):
    """delta, A, B, C, u, z."""
    wide, narrow = (batch, channels, length), (batch, length, size)
    return [wide, (channels, size), narrow, narrow, wide, wide]


def selective(batch, channels, length, size, *, gated=True):
    """A selective scan in the operators of Hugging Face's Mamba."""
    op, builder = relax.op, relax.BlockBuilder()
    kinds = [relax.TensorType(s, "float32") for s in shapes_of(batch, channels, length, size)]
    params = [relax.Var(n, k) for n, k in zip("dABCuz", kinds, strict=True)]
    delta, A, B, C, u, z = params
    name = builder.add_func(states(batch, channels, length, size), "states")
    with builder.function("main", params):
        with builder.dataflow():
            emit = builder.emit
            soft = emit(op.log(emit(op.add(emit(op.exp(delta)), relax.const(1.0, "float32")))))
            big = emit(op.greater(delta, relax.const(20.0, "float32")))
            dt = emit(op.where(big, delta, soft))
            rate = emit(op.multiply(emit(op.expand_dims(A, [0, 2])), emit(op.expand_dims(dt, 3))))
            a = emit(op.permute_dims(emit(op.exp(rate)), [2, 0, 1, 3]))
            drive = emit(op.multiply(emit(op.expand_dims(dt, 3)), emit(op.expand_dims(B, 1))))
            drive = emit(op.multiply(drive, emit(op.expand_dims(u, 3))))
            x = emit(op.permute_dims(drive, [2, 0, 1, 3]))
            c = emit(op.permute_dims(C, [1, 0, 2]))
            types = [
                relax.TensorType([batch, channels, size], "float32"),
                relax.TensorType([length, batch, channels, 1], "float32"),
            ]
            both = emit(relax.call_tir(name, [a, x, c], types))
            last, y = (emit(relax.TupleGetItem(both, i)) for i in range(2))
            y = emit(op.reshape(emit(op.permute_dims(y, [1, 2, 0, 3])), kinds[0].shape))
            if gated:
                y = emit(op.multiply(emit(op.add(y, u)), emit(op.sigmoid(z))))
                y = emit(op.permute_dims(y, [0, 2, 1]))
            outs = [builder.emit_output(y), builder.emit_output(emit(op.negative(last)))]
        builder.emit_func_output(relax.Tuple(outs))
    return builder.get()


def reference(delta, A, B, C, u, z):
    delta, A, B, C, u, z = (v.astype("float64") for v in (delta, A, B, C, u, z))
    dt = np.log1p(np.exp(delta))
    state, ys = np.zeros((*delta.shape[:2], A.shape[1])), []
    for t in range(delta.shape[2]):
        drive = dt[:, :, t, None] * B[:, t, None, :] * u[:, :, t, None]
        state = np.exp(dt[:, :, t, None] * A) * state + drive
        ys.append((state * C[:, t, None, :]).sum(-1))
    return np.moveaxis((np.stack(ys, 2) + u) / (1 + np.exp(-z)), 1, 2), -state


def elements(mod):
    """Of the largest array that main makes, and leaves to another call."""
    sizes = [0]

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.ty, relax.TensorType):
            sizes.append(int(np.prod([int(n) for n in expr.ty.shape.values])))

    relax.analysis.post_order_visit(mod["main"], visit)
    return max(sizes)


@pytest.mark.parametrize("sizes", [(2, 32, 33, 16), (3, 17, 200, 8), (2, 64, 80, 4)], ids=str)
def test_a_selective_scan_is_one_kernel(sizes):
    batch, channels, length, size = sizes
    mod = selective(*sizes)
    assert elements(mod) == batch * channels * length * size
    after = FuseScans(CPU)(mod)
    relax.analysis.well_formed(after)
    (report,) = FindScans(after)
    assert len(report.recurrences) == 1
    # The state's negation reads it behind the walk; all else is in the scan.
    assert len(calls(after)) <= 2
    assert elements(after) <= batch * channels * max(length, size)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in shapes_of(*sizes)]
    arrays[1] = -np.abs(arrays[1])
    arrays[0][0, 0, :4] = 30  # the other side of the choice
    got, want = run(mod, arrays)[0](), reference(*arrays)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, 2e-4, 2e-4)


@pytest.mark.parametrize("sizes", [(2, 3, 5, 2), (1, 1, 1, 4), (2, 20, 1, 16)], ids=str)
def test_small_ones_are_right_whatever_is_fused(sizes):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype("float32") for s in shapes_of(*sizes)]
    arrays[1] = -np.abs(arrays[1])
    got, want = run(selective(*sizes), arrays)[0](), reference(*arrays)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, 2e-4, 2e-4)


def test_what_a_step_repeats_is_computed_once():
    """The step size is read for every state; its logarithm is not."""
    after = FuseScans(CPU)(selective(2, 32, 33, 16))
    (report,) = FindScans(after)
    text = after[report.name].script()
    assert text.count("T.log(") == 1
    line = next(at for at, part in enumerate(text.splitlines()) if "T.log(" in part)
    stored = text.splitlines()[line].split("=")[0]
    assert "16" not in stored, "within the loop over channels and time alone"
    inside = next(p for p in text.splitlines() if "T.exp(" in p and "T.log(" not in p)
    assert len(inside) - len(inside.lstrip()) > len(stored) - len(stored.lstrip())


def test_a_large_permutation_stays_a_copy():
    """One element for each step and lane: to read it along other strides would cost as much."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1024, 16], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            total = builder.emit(relax.op.cumsum(builder.emit(relax.op.permute_dims(x)), 1))
            out = builder.emit_output(relax.op.permute_dims(total))
        builder.emit_func_output(out)
    legal = LegalizeScans()(builder.get())
    tvm.ir.assert_structural_equal(FuseScans(CPU)(legal), legal)
