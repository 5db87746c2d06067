"""RWKV's kernels as a serving engine writes them: symbolic batch and length, heads of 64."""

from tvm.script import tirx as T

HEADS, SIZE = 2, 64


def make_wkv_six(heads, size):
    """RWKV-6: a decay for each token and element of its key."""

    @T.prim_func(s_tir=True)
    def kernel(
        r: T.handle,
        k: T.handle,
        v: T.handle,
        U: T.Buffer((heads, size), "float32"),
        w: T.handle,
        s0: T.handle,
        y: T.handle,
        s: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True})
        batch, length = T.int64(), T.int64()
        R = T.match_buffer(r, (batch, length, heads, size), "float32")
        K = T.match_buffer(k, (batch, length, heads, size), "float32")
        V = T.match_buffer(v, (batch, length, heads, size), "float32")
        W = T.match_buffer(w, (batch, length, heads, size), "float32")
        S0 = T.match_buffer(s0, (batch, heads, size, size), "float32")
        Y = T.match_buffer(y, (batch, length, heads, size), "float32")
        S = T.match_buffer(s, (batch, heads, size, size), "float32")
        for b in T.thread_binding(batch, thread="blockIdx.y"):
            for h in T.thread_binding(heads, thread="blockIdx.x"):
                for i in T.thread_binding(size, thread="threadIdx.x"):
                    for j in range(size):
                        with T.sblock("state"):
                            vb, vh, vi, vj = T.axis.remap("SSSS", [b, h, i, j])
                            S[vb, vh, vi, vj] = S0[vb, vh, vi, vj]
                    for t in range(length):
                        with T.sblock("token"):
                            vb = T.axis.spatial(batch, b)
                            vt = T.axis.opaque(length, t)
                            vh = T.axis.spatial(heads, h)
                            vi = T.axis.spatial(size, i)
                            Y[vb, vt, vh, vi] = T.float32(0)
                            for j in range(size):
                                added: T.let[T.float32] = K[vb, vt, vh, j] * V[vb, vt, vh, vi]
                                Y[vb, vt, vh, vi] += R[vb, vt, vh, j] * (
                                    U[vh, j] * added + S[vb, vh, vi, j]
                                )
                                S[vb, vh, vi, j] = added + W[vb, vt, vh, j] * S[vb, vh, vi, j]

    return kernel


def make_wkv_five(heads, size):
    """RWKV-5: a decay for each element of a key."""

    @T.prim_func(s_tir=True)
    def kernel(
        r: T.handle,
        k: T.handle,
        v: T.handle,
        U: T.Buffer((heads, size), "float32"),
        W: T.Buffer((heads, size), "float32"),
        s0: T.handle,
        y: T.handle,
        s: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True})
        batch, length = T.int64(), T.int64()
        R = T.match_buffer(r, (batch, length, heads, size), "float32")
        K = T.match_buffer(k, (batch, length, heads, size), "float32")
        V = T.match_buffer(v, (batch, length, heads, size), "float32")
        S0 = T.match_buffer(s0, (batch, heads, size, size), "float32")
        Y = T.match_buffer(y, (batch, length, heads, size), "float32")
        S = T.match_buffer(s, (batch, heads, size, size), "float32")
        for b in T.thread_binding(batch, thread="blockIdx.y"):
            for h in T.thread_binding(heads, thread="blockIdx.x"):
                for i in T.thread_binding(size, thread="threadIdx.x"):
                    for j in range(size):
                        with T.sblock("state"):
                            vb, vh, vi, vj = T.axis.remap("SSSS", [b, h, i, j])
                            S[vb, vh, vi, vj] = S0[vb, vh, vi, vj]
                    for t in range(length):
                        with T.sblock("token"):
                            vb = T.axis.spatial(batch, b)
                            vt = T.axis.opaque(length, t)
                            vh = T.axis.spatial(heads, h)
                            vi = T.axis.spatial(size, i)
                            Y[vb, vt, vh, vi] = T.float32(0)
                            for j in range(size):
                                added: T.let[T.float32] = K[vb, vt, vh, j] * V[vb, vt, vh, vi]
                                Y[vb, vt, vh, vi] += R[vb, vt, vh, j] * (
                                    U[vh, j] * added + S[vb, vh, vi, j]
                                )
                                S[vb, vh, vi, j] = added + W[vh, j] * S[vb, vh, vi, j]

    return kernel


wkv_six = make_wkv_six(HEADS, SIZE)
