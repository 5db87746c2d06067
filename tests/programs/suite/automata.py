"""Finite state: text, brackets, flip-flops, carries of adders, checksums of bits."""

from tvm.script import tirx as T

from tests.programs.suite.program import BOOL, F32, I32, LANE_I32, U32, B, L, Program, buffer


@T.prim_func(s_tir=True)
def parity(X: BOOL, H: BOOL):
    for b, t in T.grid(B, L):
        H[b, t] = T.Select(
            T.if_then_else(t > 0, H[b, t - 1], T.bool(False)), T.Not(X[b, t]), X[b, t]
        )


@T.prim_func(s_tir=True)
def inside_quotes(C: I32, Y: BOOL):
    for b in range(B):
        inside = T.alloc_buffer((1,), "bool")
        inside[0] = T.bool(False)
        for t in range(L):
            if C[b, t] == 34:
                inside[0] = T.Not(inside[0])
            Y[b, t] = inside[0]


@T.prim_func(s_tir=True)
def escaped(C: I32, Y: BOOL):
    for b in range(B):
        after = T.alloc_buffer((1,), "bool")
        after[0] = T.bool(False)
        for t in range(L):
            Y[b, t] = after[0]
            after[0] = T.And(C[b, t] == 92, T.Not(after[0]))


@T.prim_func(s_tir=True)
def carry_of_an_adder(P: BOOL, Q: BOOL, Carry: BOOL):
    for b in range(B):
        c = T.alloc_buffer((1,), "bool")
        c[0] = T.bool(False)
        for t in range(L):
            c[0] = T.Or(T.And(P[b, t], Q[b, t]), T.And(c[0], T.Or(P[b, t], Q[b, t])))
            Carry[b, t] = c[0]


@T.prim_func(s_tir=True)
def sum_bit_of_an_adder(P: I32, Q: I32, S: I32):
    for b in range(B):
        c = T.alloc_buffer((1,), "int32")
        c[0] = 0
        for t in range(L):
            S[b, t] = T.bitwise_xor(T.bitwise_xor(P[b, t], Q[b, t]), c[0])
            c[0] = T.bitwise_or(
                T.bitwise_and(P[b, t], Q[b, t]),
                T.bitwise_and(c[0], T.bitwise_xor(P[b, t], Q[b, t])),
            )


@T.prim_func(s_tir=True)
def borrow(P: I32, Q: I32, Y: I32):
    for b in range(B):
        c = T.alloc_buffer((1,), "int32")
        c[0] = 0
        for t in range(L):
            c[0] = T.bitwise_or(
                T.bitwise_and(T.bitwise_not(P[b, t]), Q[b, t]),
                T.bitwise_and(c[0], T.bitwise_or(T.bitwise_not(P[b, t]), Q[b, t])),
            )
            Y[b, t] = T.bitwise_and(c[0], 1)


@T.prim_func(s_tir=True)
def hysteresis(X: F32, Y: BOOL):
    for b in range(B):
        on = T.alloc_buffer((1,), "bool")
        on[0] = T.bool(False)
        for t in range(L):
            on[0] = T.Select(on[0], X[b, t] > T.float32(-2), X[b, t] > T.float32(2))
            Y[b, t] = on[0]


@T.prim_func(s_tir=True)
def set_reset_latch(S: BOOL, R: BOOL, Y: BOOL):
    for b in range(B):
        q = T.alloc_buffer((1,), "bool")
        q[0] = T.bool(False)
        for t in range(L):
            if R[b, t]:
                q[0] = T.bool(False)
            if S[b, t]:
                q[0] = T.bool(True)
            Y[b, t] = q[0]


@T.prim_func(s_tir=True)
def toggle_flip_flop(Toggle: I32, Y: I32):
    for b in range(B):
        q = T.alloc_buffer((1,), "int32")
        q[0] = 0
        for t in range(L):
            q[0] = T.bitwise_xor(q[0], Toggle[b, t])
            Y[b, t] = q[0]


@T.prim_func(s_tir=True)
def any_so_far(X: BOOL, Y: BOOL):
    for b, t in T.grid(B, L):
        Y[b, t] = T.Or(T.if_then_else(t > 0, Y[b, t - 1], T.bool(False)), X[b, t])


@T.prim_func(s_tir=True)
def all_so_far(X: BOOL, Y: BOOL):
    for b, t in T.grid(B, L):
        Y[b, t] = T.And(X[b, t], T.if_then_else(t > 0, Y[b, t - 1], T.bool(True)))


@T.prim_func(s_tir=True)
def gray_code(X: U32, H: U32):
    for b, t in T.grid(B, L):
        H[b, t] = T.bitwise_xor(T.if_then_else(t > 0, H[b, t - 1], T.uint32(0)), X[b, t])


@T.prim_func(s_tir=True)
def masked_register(Keep: U32, Flip: U32, S: buffer("uint32", B), Y: U32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_xor(T.bitwise_and(S[b], Keep[b, t]), Flip[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def bits_seen(X: U32, S: buffer("uint32", B), Y: U32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_or(S[b], X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def string_matching(X: I32, Table: buffer("int32", 5, 3), Y: I32):
    for b in range(B):
        state = T.alloc_buffer((1,), "int32")
        state[0] = 0
        for t in range(L):
            state[0] = Table[state[0], X[b, t]]
            Y[b, t] = state[0]


@T.prim_func(s_tir=True)
def table_of_each_lane(X: I32, Table: buffer("int32", B, 4, 4), S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = Table[b, S[b], X[b, t]]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def byte_classes_first(X: I32, Class: buffer("int32", 9), Table: buffer("int32", 3, 3), Y: I32):
    for b in range(B):
        state = T.alloc_buffer((1,), "int32")
        state[0] = 0
        for t in range(L):
            state[0] = Table[Class[X[b, t]], state[0]]
            Y[b, t] = state[0]


@T.prim_func(s_tir=True)
def shift_register_of_four_bits(Table: buffer("int32", 16, 2), X: I32, Y: I32):
    for b in range(B):
        state = T.alloc_buffer((1,), "int32")
        state[0] = 1
        for t in range(L):
            state[0] = Table[state[0], X[b, t]]
            Y[b, t] = T.bitwise_and(state[0], 1)


@T.prim_func(s_tir=True)
def bracket_depth(Open: I32, Close: I32, Depth: I32):
    for b, t in T.grid(B, L):
        Depth[b, t] = T.if_then_else(t > 0, Depth[b, t - 1], 0) + Open[b, t] - Close[b, t]


@T.prim_func(s_tir=True)
def balanced_so_far(C: I32, Y: BOOL):
    for b in range(B):
        depth = T.alloc_buffer((1,), "int32")
        low = T.alloc_buffer((1,), "int32")
        depth[0] = 0
        low[0] = 0
        for t in range(L):
            depth[0] = depth[0] + T.Select(C[b, t] == 40, 1, T.Select(C[b, t] == 41, -1, 0))
            low[0] = T.min(low[0], depth[0])
            Y[b, t] = T.And(low[0] == 0, depth[0] == 0)


@T.prim_func(s_tir=True)
def words_so_far(C: I32, Y: I32):
    for b in range(B):
        before = T.alloc_buffer((1,), "bool")
        count = T.alloc_buffer((1,), "int32")
        before[0] = T.bool(False)
        count[0] = 0
        for t in range(L):
            letter: T.let[T.bool] = C[b, t] > 0
            count[0] = count[0] + T.Select(T.And(letter, T.Not(before[0])), 1, 0)
            before[0] = letter
            Y[b, t] = count[0]


@T.prim_func(s_tir=True)
def line_numbers(C: I32, Line: I32, Column: I32):
    for b in range(B):
        line = T.alloc_buffer((1,), "int32")
        column = T.alloc_buffer((1,), "int32")
        line[0] = 1
        column[0] = 0
        for t in range(L):
            if C[b, t] == 10:
                line[0] = line[0] + 1
                column[0] = 0
            else:
                column[0] = column[0] + 1
            Line[b, t] = line[0]
            Column[b, t] = column[0]


@T.prim_func(s_tir=True)
def residue_of_a_binary_number(X: I32, Y: I32):
    for b in range(B):
        r = T.alloc_buffer((1,), "int32")
        r[0] = 0
        for t in range(L):
            r[0] = (r[0] * 2 + X[b, t]) % 7
            Y[b, t] = r[0]


@T.prim_func(s_tir=True)
def ring_counter(X: I32, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_and(S[b] + X[b, t], 15)
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def shift_and_flip(X: U32, S: buffer("uint32", B), Y: U32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_xor(T.shift_right(S[b], T.uint32(3)), X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def serial_input(Bit: U32, S: buffer("uint32", B), Y: U32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_or(T.shift_left(S[b], T.uint32(1)), Bit[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def flat_table(X: I32, Table: buffer("int32", 12), S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = Table[S[b] * 3 + X[b, t]]
        Y[b, t] = S[b]


PROGRAMS = [
    Program(parity, "two states"),
    Program(inside_quotes, "two states", {"C": (33, 36)}),
    Program(escaped, "two states", {"C": (91, 94)}),
    Program(carry_of_an_adder, "two states"),
    Program(sum_bit_of_an_adder, "bitwise affine", {"P": (0, 2), "Q": (0, 2)}),
    Program(borrow, "bitwise affine", {"P": (0, 2), "Q": (0, 2)}),
    Program(hysteresis, "two states", {"X": (-5, 6)}),
    Program(set_reset_latch, "two states"),
    Program(toggle_flip_flop, "reduce xor", {"Toggle": (0, 2)}),
    Program(any_so_far, "reduce or"),
    Program(all_so_far, "reduce and"),
    Program(gray_code, "reduce xor", {"X": (0, 1 << 31)}),
    Program(masked_register, "bitwise affine", {"Keep": (0, 1 << 31), "Flip": (0, 1 << 31)}),
    Program(bits_seen, "reduce or", {"X": (0, 9)}),
    Program(string_matching, "finite automaton", {"X": (0, 3), "Table": (0, 5)}),
    Program(table_of_each_lane, "finite automaton", {"X": (0, 4), "Table": (0, 4), "S": (0, 4)}),
    Program(
        byte_classes_first, "finite automaton", {"X": (0, 9), "Class": (0, 3), "Table": (0, 3)}
    ),
    Program(shift_register_of_four_bits, "finite automaton", {"X": (0, 2), "Table": (0, 16)}),
    Program(bracket_depth, "reduce add", {"Open": (0, 2), "Close": (0, 2)}),
    Program(balanced_so_far, "reduce add, reduce min", {"C": (39, 43)}),
    Program(words_so_far, "two states, reduce add"),
    Program(line_numbers, "reduce add, affine", {"C": (8, 12)}),
    Program(residue_of_a_binary_number, "modular affine", {"X": (0, 2)}),
    Program(ring_counter, "modular affine", {"X": (-5, 6)}),
    Program(shift_and_flip, "shifted bits", {"X": (0, 1 << 31)}),
    Program(serial_input, "shifted bits", {"Bit": (0, 2)}),
    Program(flat_table, "finite automaton", {"X": (0, 3), "Table": (0, 4), "S": (0, 4)}),
]
