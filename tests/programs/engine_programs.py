"""Delta rules as serving engines write them: bound to threads, symbolic batch and length.

A thread has a column of the state. Heads of keys are shared by groups of heads of values, the state
is in the output that the caller goes on with, or in registers, and the sum over keys is in the
output of the step, or in a register.
"""

from tvm.script import tirx as T

KEYS_OF = 2  # heads of values for each head of keys


def make_blocks(heads, keys, values, dtype="float32", out="float32", state="float32"):
    """A gated delta net: the state in the output, sums in the step's output, a block for each."""
    groups, scale = heads // KEYS_OF, keys**-0.5

    @T.prim_func(s_tir=True)
    def gated_blocks(
        q: T.handle,
        k: T.handle,
        v: T.handle,
        g: T.handle,
        bt: T.handle,
        s0: T.handle,
        y: T.handle,
        s: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": 1})
        batch, length = T.int64(), T.int64()
        Q = T.match_buffer(q, (batch, length, groups, keys), dtype)
        Ks = T.match_buffer(k, (batch, length, groups, keys), dtype)
        Vs = T.match_buffer(v, (batch, length, heads, values), dtype)
        G = T.match_buffer(g, (batch, length, heads), "float32")
        B = T.match_buffer(bt, (batch, length, heads), "float32")
        S0 = T.match_buffer(s0, (batch, heads, keys, values), state)
        Y = T.match_buffer(y, (batch, length, heads, values), out)
        S = T.match_buffer(s, (batch, heads, keys, values), state)
        for b in T.thread_binding(batch, thread="blockIdx.y"):
            for h in T.thread_binding(heads, thread="blockIdx.x"):
                for c in T.thread_binding(values, thread="threadIdx.x"):
                    for r in range(keys):
                        with T.sblock("first"):
                            vb, vh, vr, vc = T.axis.remap("SSSS", [b, h, r, c])
                            S[vb, vh, vr, vc] = S0[vb, vh, vr, vc]
                    for t in range(length):
                        for r in range(keys):
                            with T.sblock("decay"):
                                vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                                vt = T.axis.opaque(length, t)
                                vr = T.axis.opaque(keys, r)
                                S[vb, vh, vr, vc] = T.cast(
                                    T.cast(S[vb, vh, vr, vc], "float32") * G[vb, vt, vh], state
                                )
                        with T.sblock("clear_known"):
                            vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                            vt = T.axis.opaque(length, t)
                            Y[vb, vt, vh, vc] = T.cast(T.float32(0), out)
                        for r in range(keys):
                            with T.sblock("known"):
                                vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                                vt = T.axis.opaque(length, t)
                                vr = T.axis.opaque(keys, r)
                                Y[vb, vt, vh, vc] = Y[vb, vt, vh, vc] + T.cast(
                                    T.cast(S[vb, vh, vr, vc], "float32")
                                    * T.cast(Ks[vb, vt, vh // KEYS_OF, vr], "float32"),
                                    out,
                                )
                        for r in range(keys):
                            with T.sblock("update"):
                                vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                                vt = T.axis.opaque(length, t)
                                vr = T.axis.opaque(keys, r)
                                S[vb, vh, vr, vc] = T.cast(
                                    T.cast(S[vb, vh, vr, vc], "float32")
                                    + T.cast(Ks[vb, vt, vh // KEYS_OF, vr], "float32")
                                    * B[vb, vt, vh]
                                    * (
                                        T.cast(Vs[vb, vt, vh, vc], "float32")
                                        - T.cast(Y[vb, vt, vh, vc], "float32")
                                    ),
                                    state,
                                )
                        with T.sblock("clear_out"):
                            vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                            vt = T.axis.opaque(length, t)
                            Y[vb, vt, vh, vc] = T.cast(T.float32(0), out)
                        for r in range(keys):
                            with T.sblock("out"):
                                vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                                vt = T.axis.opaque(length, t)
                                vr = T.axis.opaque(keys, r)
                                Y[vb, vt, vh, vc] = Y[vb, vt, vh, vc] + T.cast(
                                    T.cast(S[vb, vh, vr, vc], "float32")
                                    * T.cast(Q[vb, vt, vh // KEYS_OF, vr], "float32"),
                                    out,
                                )
                        with T.sblock("scale"):
                            vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                            vt = T.axis.opaque(length, t)
                            Y[vb, vt, vh, vc] = Y[vb, vt, vh, vc] * T.cast(T.float32(scale), out)

    return gated_blocks


def make_registers(heads, keys, values, dtype="float32", out="float32"):
    """The same with a thread's column in registers, in one block."""
    groups, scale = heads // KEYS_OF, keys**-0.5

    @T.prim_func(s_tir=True)
    def gated_registers(
        q: T.handle,
        k: T.handle,
        v: T.handle,
        g: T.handle,
        bt: T.handle,
        s0: T.handle,
        y: T.handle,
        s: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": 1})
        batch, length = T.int64(), T.int64()
        Q = T.match_buffer(q, (batch, length, groups, keys), dtype)
        Ks = T.match_buffer(k, (batch, length, groups, keys), dtype)
        Vs = T.match_buffer(v, (batch, length, heads, values), dtype)
        G = T.match_buffer(g, (batch, length, heads), "float32")
        B = T.match_buffer(bt, (batch, length, heads), "float32")
        S0 = T.match_buffer(s0, (batch, heads, keys, values), "float32")
        Y = T.match_buffer(y, (batch, length, heads, values), out)
        S = T.match_buffer(s, (batch, heads, keys, values), "float32")
        for b in T.thread_binding(batch, thread="blockIdx.y"):
            for h in T.thread_binding(heads, thread="blockIdx.x"):
                for c in T.thread_binding(values, thread="threadIdx.x"):
                    with T.sblock("column"):
                        column = T.sblock_alloc_buffer((keys,), "float32", scope="local")
                        known = T.sblock_alloc_buffer((1,), "float32", scope="local")
                        seen = T.sblock_alloc_buffer((1,), "float32", scope="local")
                        for r in range(keys):
                            column[r] = S0[b, h, r, c]
                        for t in range(length):
                            gate: T.let[T.float32] = G[b, t, h]
                            known[0] = T.float32(0)
                            for r in range(keys):
                                column[r] = column[r] * gate
                                known[0] = known[0] + column[r] * T.cast(
                                    Ks[b, t, h // KEYS_OF, r], "float32"
                                )
                            error: T.let[T.float32] = B[b, t, h] * (
                                T.cast(Vs[b, t, h, c], "float32") - known[0]
                            )
                            seen[0] = T.float32(0)
                            for r in range(keys):
                                column[r] = (
                                    column[r] + T.cast(Ks[b, t, h // KEYS_OF, r], "float32") * error
                                )
                                seen[0] = seen[0] + column[r] * T.cast(
                                    Q[b, t, h // KEYS_OF, r], "float32"
                                )
                            Y[b, t, h, c] = T.cast(seen[0] * T.float32(scale), out)
                        for r in range(keys):
                            S[b, h, r, c] = column[r]

    return gated_registers


def make_in_place(heads, keys, values, dtype="float32", out="float32", length=None):
    """The state in and out is one buffer; columns over blocks and threads, keys over threads."""
    groups, scale, lanes, parts = heads // KEYS_OF, keys**-0.5, min(32, values), 4
    steps = T.int64() if length is None else length

    @T.prim_func(s_tir=True)
    def gated_in_place(
        q: T.handle,
        k: T.handle,
        v: T.handle,
        g: T.handle,
        bt: T.handle,
        s: T.handle,
        y: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": 1})
        batch = T.int64()
        Q = T.match_buffer(q, (batch, steps, groups, keys), dtype)
        Ks = T.match_buffer(k, (batch, steps, groups, keys), dtype)
        Vs = T.match_buffer(v, (batch, steps, heads, values), dtype)
        G = T.match_buffer(g, (batch, steps, heads), "float32")
        B = T.match_buffer(bt, (batch, steps, heads), "float32")
        S = T.match_buffer(s, (batch, heads, keys, values), "float32")
        Y = T.match_buffer(y, (batch, steps, heads, values), out)
        known = T.sblock_alloc_buffer((batch, heads, values), "float32", scope="local")
        seen = T.sblock_alloc_buffer((batch, heads, values), "float32", scope="local")
        for b in T.thread_binding(batch, thread="blockIdx.z"):
            for h in T.thread_binding(heads, thread="blockIdx.y"):
                for co in T.thread_binding(values // lanes, thread="blockIdx.x"):
                    for t in range(steps):
                        for ci in T.thread_binding(lanes, thread="threadIdx.x"):
                            for ro in T.thread_binding(parts, thread="threadIdx.y"):
                                for ri in range(keys // parts):
                                    with T.sblock("known"):
                                        vb, vt, vh = T.axis.remap("SSS", [b, t, h])
                                        vc = T.axis.spatial(values, co * lanes + ci)
                                        vr = T.axis.reduce(keys, ro * (keys // parts) + ri)
                                        with T.init():
                                            known[vb, vh, vc] = T.float32(0)
                                        known[vb, vh, vc] = known[vb, vh, vc] + G[vb, vt, vh] * S[
                                            vb, vh, vr, vc
                                        ] * T.cast(Ks[vb, vt, vh // KEYS_OF, vr], "float32")
                        for ci in T.thread_binding(lanes, thread="threadIdx.x"):
                            for ro in T.thread_binding(parts, thread="threadIdx.y"):
                                for ri in range(keys // parts):
                                    with T.sblock("update"):
                                        vb, vh = T.axis.remap("SS", [b, h])
                                        vt = T.axis.opaque(steps, t)
                                        vc = T.axis.spatial(values, co * lanes + ci)
                                        vr = T.axis.spatial(keys, ro * (keys // parts) + ri)
                                        S[vb, vh, vr, vc] = G[vb, vt, vh] * S[
                                            vb, vh, vr, vc
                                        ] + T.cast(Ks[vb, vt, vh // KEYS_OF, vr], "float32") * B[
                                            vb, vt, vh
                                        ] * (
                                            T.cast(Vs[vb, vt, vh, vc], "float32")
                                            - known[vb, vh, vc]
                                        )
                        for ci in T.thread_binding(lanes, thread="threadIdx.x"):
                            for ro in T.thread_binding(parts, thread="threadIdx.y"):
                                for ri in range(keys // parts):
                                    with T.sblock("seen"):
                                        vb, vt, vh = T.axis.remap("SSS", [b, t, h])
                                        vc = T.axis.spatial(values, co * lanes + ci)
                                        vr = T.axis.reduce(keys, ro * (keys // parts) + ri)
                                        with T.init():
                                            seen[vb, vh, vc] = T.float32(0)
                                        seen[vb, vh, vc] = seen[vb, vh, vc] + S[
                                            vb, vh, vr, vc
                                        ] * T.cast(Q[vb, vt, vh // KEYS_OF, vr], "float32")
                        for ci in T.thread_binding(lanes, thread="threadIdx.x"):
                            for ro in T.thread_binding(parts, thread="threadIdx.y"):
                                with T.sblock("out"):
                                    vb, vh = T.axis.remap("SS", [b, h])
                                    vt = T.axis.opaque(steps, t)
                                    vc = T.axis.spatial(values, co * lanes + ci)
                                    T.where(ro == 0)
                                    Y[vb, vt, vh, vc] = T.cast(
                                        seen[vb, vh, vc] * T.float32(scale), out
                                    )

    return gated_in_place


def make_step(heads, keys, values, dtype="float32", out="float32"):
    """One token: no loop over time, from one state to another."""
    groups, scale = heads // KEYS_OF, keys**-0.5

    @T.prim_func(s_tir=True)
    def gated_step(
        q: T.handle,
        k: T.handle,
        v: T.handle,
        g: T.handle,
        bt: T.handle,
        s0: T.handle,
        y: T.handle,
        s: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": 1})
        batch = T.int64()
        Q = T.match_buffer(q, (batch, 1, groups, keys), dtype)
        Ks = T.match_buffer(k, (batch, 1, groups, keys), dtype)
        Vs = T.match_buffer(v, (batch, 1, heads, values), dtype)
        G = T.match_buffer(g, (batch, 1, heads), "float32")
        B = T.match_buffer(bt, (batch, 1, heads), "float32")
        S0 = T.match_buffer(s0, (batch, heads, keys, values), "float32")
        Y = T.match_buffer(y, (batch, 1, heads, values), out)
        S = T.match_buffer(s, (batch, heads, keys, values), "float32")
        known = T.sblock_alloc_buffer((1,), "float32", scope="local")
        seen = T.sblock_alloc_buffer((1,), "float32", scope="local")
        for b in T.thread_binding(batch, thread="blockIdx.y"):
            for h in T.thread_binding(heads, thread="blockIdx.x"):
                for c in T.thread_binding(values, thread="threadIdx.x"):
                    with T.sblock("clear_known"):
                        known[0] = T.float32(0)
                    for r in range(keys):
                        with T.sblock("known"):
                            vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                            vr = T.axis.opaque(keys, r)
                            known[0] = known[0] + S0[vb, vh, vr, vc] * G[vb, 0, vh] * T.cast(
                                Ks[vb, 0, vh // KEYS_OF, vr], "float32"
                            )
                    with T.sblock("clear_seen"):
                        seen[0] = T.float32(0)
                    for r in range(keys):
                        with T.sblock("update"):
                            vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                            vr = T.axis.opaque(keys, r)
                            after: T.let[T.float32] = S0[vb, vh, vr, vc] * G[vb, 0, vh] + T.cast(
                                Ks[vb, 0, vh // KEYS_OF, vr], "float32"
                            ) * B[vb, 0, vh] * (T.cast(Vs[vb, 0, vh, vc], "float32") - known[0])
                            S[vb, vh, vr, vc] = after
                            seen[0] = seen[0] + after * T.cast(
                                Q[vb, 0, vh // KEYS_OF, vr], "float32"
                            )
                    with T.sblock("out"):
                        vb, vh, vc = T.axis.remap("SSS", [b, h, c])
                        Y[vb, 0, vh, vc] = T.cast(seen[0] * T.float32(scale), out)

    return gated_step


def make_wkv_seven(heads, size, dtype="float32", out="float32", length=None):
    """RWKV-7: a thread has a row of the state (values x keys), and one block has a step."""
    steps = T.int64() if length is None else length

    @T.prim_func(s_tir=True)
    def wkv_seven(
        r: T.handle,
        w: T.handle,
        k: T.handle,
        v: T.handle,
        a: T.handle,
        bt: T.handle,
        s0: T.handle,
        y: T.handle,
        s: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": 1})
        batch = T.int64()
        R = T.match_buffer(r, (batch, steps, heads, size), dtype)
        W = T.match_buffer(w, (batch, steps, heads, size), "float32")
        Ks = T.match_buffer(k, (batch, steps, heads, size), dtype)
        Vs = T.match_buffer(v, (batch, steps, heads, size), dtype)
        A = T.match_buffer(a, (batch, steps, heads, size), dtype)
        B = T.match_buffer(bt, (batch, steps, heads, size), dtype)
        S0 = T.match_buffer(s0, (batch, heads, size, size), "float32")
        Y = T.match_buffer(y, (batch, steps, heads, size), out)
        S = T.match_buffer(s, (batch, heads, size, size), "float32")
        for b in T.thread_binding(batch, thread="blockIdx.y"):
            for h in T.thread_binding(heads, thread="blockIdx.x"):
                for i in T.thread_binding(size, thread="threadIdx.x"):
                    for j in range(size):
                        with T.sblock("first"):
                            vb, vh, vi, vj = T.axis.remap("SSSS", [b, h, i, j])
                            S[vb, vh, vi, vj] = S0[vb, vh, vi, vj]
                    for t in range(steps):
                        with T.sblock("token"):
                            vb = T.axis.spatial(batch, b)
                            vt = T.axis.opaque(steps, t)
                            vh = T.axis.spatial(heads, h)
                            vi = T.axis.spatial(size, i)
                            erased = T.sblock_alloc_buffer((1,), "float32", scope="local")
                            erased[0] = T.float32(0)
                            for j in range(size):
                                erased[0] += T.cast(A[vb, vt, vh, j], "float32") * S[vb, vh, vi, j]
                            Y[vb, vt, vh, vi] = T.cast(T.float32(0), out)
                            for j in range(size):
                                S[vb, vh, vi, j] = (
                                    W[vb, vt, vh, j] * S[vb, vh, vi, j]
                                    + T.cast(Ks[vb, vt, vh, j], "float32")
                                    * T.cast(Vs[vb, vt, vh, vi], "float32")
                                    + erased[0] * T.cast(B[vb, vt, vh, j], "float32")
                                )
                                Y[vb, vt, vh, vi] += T.cast(
                                    T.cast(R[vb, vt, vh, j], "float32") * S[vb, vh, vi, j], out
                                )

    return wkv_seven


MAKERS = {
    "blocks": make_blocks,
    "registers": make_registers,
    "in_place": make_in_place,
    "step": make_step,
}
