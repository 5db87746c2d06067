"""One term away from a recurrence that would be taken: steps that are in no family."""

from tvm.script import tirx as T

from tests.programs.suite.program import BOOL, F32, I32, LANE, LANE_I32, U32, B, L, Refused, buffer

STEP, COUPLED = "unsupported-step", "coupled-carries"


@T.prim_func(s_tir=True)
def logistic_map(R: LANE, H: buffer("float32", B, L + 1)):
    for b, t in T.grid(B, L):
        H[b, t + 1] = R[b] * H[b, t] * (T.float32(1) - H[b, t])


@T.prim_func(s_tir=True)
def quadratic_term(A: F32, X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = A[b, t] * S[b] + X[b, t] + T.float32(0.001) * S[b] * S[b]


@T.prim_func(s_tir=True)
def square_root_step(X: LANE, S: LANE):
    for b, _t in T.grid(B, L):
        S[b] = (S[b] + X[b] / S[b]) * T.float32(0.5)


@T.prim_func(s_tir=True)
def recurrent_network(X: F32, W: LANE, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.tanh(W[b] * S[b] + X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def gated_recurrent_unit(X: F32, Z: F32, S: LANE):
    for b, t in T.grid(B, L):
        z: T.let[T.float32] = T.sigmoid(Z[b, t] + S[b])
        S[b] = (T.float32(1) - z) * S[b] + z * X[b, t]


@T.prim_func(s_tir=True)
def forget_gate_of_the_output(X: F32, F: F32, Y: F32):
    for b in range(B):
        c = T.alloc_buffer((1,), "float32")
        y = T.alloc_buffer((1,), "float32")
        c[0] = T.float32(0)
        y[0] = T.float32(0)
        for t in range(L):
            c[0] = T.sigmoid(F[b, t] + y[0]) * c[0] + X[b, t]
            y[0] = T.tanh(c[0])
            Y[b, t] = y[0]


@T.prim_func(s_tir=True)
def spiking_neuron_with_reset(X: F32, S: LANE, Spike: BOOL):
    for b, t in T.grid(B, L):
        v: T.let[T.float32] = T.float32(0.9) * S[b] + X[b, t]
        Spike[b, t] = v > T.float32(1)
        S[b] = T.Select(v > T.float32(1), T.float32(0), v)


@T.prim_func(s_tir=True)
def slew_limiter(X: F32, Y: F32):
    for b in range(B):
        y = T.alloc_buffer((1,), "float32")
        y[0] = T.float32(0)
        for t in range(L):
            y[0] = T.min(T.max(X[b, t], y[0] - T.float32(1)), y[0] + T.float32(1))
            Y[b, t] = y[0]


@T.prim_func(s_tir=True)
def floor_of_half_the_state(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.max(S[b] + X[b, t], S[b] * T.float32(0.5))


@T.prim_func(s_tir=True)
def leaky_rectifier(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.max(S[b] + X[b, t], T.float32(0.1) * (S[b] + X[b, t]))


@T.prim_func(s_tir=True)
def decaying_integer_floor(X: I32, S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = T.max(S[b] * 2, X[b, t])


@T.prim_func(s_tir=True)
def absolute_value(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.abs(S[b] - X[b, t])


@T.prim_func(s_tir=True)
def soft_threshold(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = (
            T.if_then_else(
                S[b] > T.float32(1),
                S[b] - T.float32(1),
                T.if_then_else(S[b] < T.float32(-1), S[b] + T.float32(1), T.float32(0)),
            )
            + X[b, t]
        )


@T.prim_func(s_tir=True)
def nearly_a_maximum(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.Select(X[b, t] > S[b], S[b], X[b, t] * T.float32(2))


@T.prim_func(s_tir=True)
def maximum_of_magnitudes(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.Select(T.abs(X[b, t]) > T.abs(S[b]), X[b, t], S[b])


@T.prim_func(s_tir=True)
def rounded_every_step(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.floor(S[b] + X[b, t])


@T.prim_func(s_tir=True)
def halved_integer(X: I32, S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = (S[b] + X[b, t]) // 2


@T.prim_func(s_tir=True)
def collatz(S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = T.if_then_else(S[b] % 2 == 0, S[b] // 2, 3 * S[b] + 1)
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def remainder_of_two_moduli(X: I32, S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = (S[b] % 7 + X[b, t]) % 5


@T.prim_func(s_tir=True)
def modulus_that_changes(X: I32, M: I32, S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = (S[b] * 3 + X[b, t]) % M[b, t]


@T.prim_func(s_tir=True)
def squared_generator(S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = (S[b] * S[b]) % 1009
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def linear_feedback_shift_register(S: buffer("uint32", B), Y: U32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_xor(
            T.shift_right(S[b], T.uint32(1)),
            T.Select(
                T.bitwise_and(S[b], T.uint32(1)) == T.uint32(1), T.uint32(0xEDB88320), T.uint32(0)
            ),
        )
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def checksum_by_table(X: U32, Table: buffer("uint32", 256), S: buffer("uint32", B)):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_xor(
            Table[T.Cast("int32", T.bitwise_and(T.bitwise_xor(S[b], X[b, t]), T.uint32(255)))],
            T.shift_right(S[b], T.uint32(8)),
        )


@T.prim_func(s_tir=True)
def signed_shift_and_flip(X: I32, S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_xor(T.shift_right(S[b], 3), X[b, t])


@T.prim_func(s_tir=True)
def shifts_both_ways(X: U32, S: buffer("uint32", B)):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_xor(
            T.shift_right(S[b], T.uint32(3)),
            T.bitwise_and(T.shift_left(S[b], T.uint32(1)), X[b, t]),
        )


@T.prim_func(s_tir=True)
def automaton_of_many_states(X: I32, Table: buffer("int32", 40, 4), S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = Table[S[b], X[b, t]]


@T.prim_func(s_tir=True)
def table_at_a_shifted_state(X: I32, Table: buffer("int32", 8), S: LANE_I32):
    for b, t in T.grid(B, L):
        S[b] = Table[(S[b] + X[b, t]) % 8]


@T.prim_func(s_tir=True)
def wide_saturating_sum(X: buffer("int64"), S: buffer("int64", B)):
    for b, t in T.grid(B, L):
        S[b] = T.min(S[b] + X[b, t], T.int64(100))


@T.prim_func(s_tir=True)
def power_of_the_state(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.pow(S[b], T.float32(0.5)) * X[b, t]


@T.prim_func(s_tir=True)
def unstabilised_logarithm(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.log(T.exp(S[b]) * T.float32(2) + T.exp(X[b, t]) * T.exp(S[b]))


@T.prim_func(s_tir=True)
def quadratic_fraction(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = (S[b] * S[b] + X[b, t]) / (S[b] + T.float32(3))


@T.prim_func(s_tir=True)
def gate_chosen_by_the_state(X: F32, A: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = T.Select(S[b] > X[b, t], A[b, t], T.float32(1)) * S[b] + X[b, t]


@T.prim_func(s_tir=True)
def counter_that_stops_itself(X: I32, S: LANE_I32):
    for b, t in T.grid(B, L):
        if S[b] != 5:
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def two_populations(X: buffer("float32", B), Prey: F32, Hunter: F32):
    for b in range(B):
        x = T.alloc_buffer((1,), "float32")
        y = T.alloc_buffer((1,), "float32")
        x[0] = X[b]
        y[0] = X[b]
        for t in range(L):
            eaten: T.let[T.float32] = T.float32(0.1) * x[0] * y[0]
            x[0] = x[0] * T.float32(1.1) - eaten
            y[0] = y[0] * T.float32(0.9) + eaten
            Prey[b, t] = x[0]
            Hunter[b, t] = y[0]


@T.prim_func(s_tir=True)
def coupled_maxima(X: F32, Y: F32, P: LANE, Q: LANE):
    for b, t in T.grid(B, L):
        p: T.let[T.float32] = T.max(P[b] + X[b, t], Q[b] + Y[b, t])
        Q[b] = T.max(Q[b], P[b] + Y[b, t])
        P[b] = p


@T.prim_func(s_tir=True)
def robber(X: I32, Take: LANE_I32, Skip: LANE_I32):
    for b, t in T.grid(B, L):
        skip: T.let[T.int32] = T.max(Skip[b], Take[b])
        Take[b] = Skip[b] + X[b, t]
        Skip[b] = skip


@T.prim_func(s_tir=True)
def normalised_forward_pass(E: buffer("float32", B, L, 2), P: buffer("float32", B, 2)):
    for b, t in T.grid(B, L):
        zero: T.let[T.float32] = (P[b, 0] * T.float32(0.9) + P[b, 1] * T.float32(0.2)) * E[b, t, 0]
        one: T.let[T.float32] = (P[b, 0] * T.float32(0.1) + P[b, 1] * T.float32(0.8)) * E[b, t, 1]
        P[b, 0] = zero / (zero + one)
        P[b, 1] = one / (zero + one)


@T.prim_func(s_tir=True)
def adaptive_step(X: F32, S: LANE, Rate: LANE):
    for b, t in T.grid(B, L):
        miss: T.let[T.float32] = X[b, t] - S[b]
        S[b] = S[b] + Rate[b] * miss
        Rate[b] = Rate[b] * T.float32(0.9) + T.abs(miss) * T.float32(0.1)


@T.prim_func(s_tir=True)
def delta_rule(K: buffer("float32", L, 8), V: F32, S: buffer("float32", B, 8), Y: F32):
    for d, t in T.grid(B, L):
        seen = T.alloc_buffer((1,), "float32")
        seen[0] = T.float32(0)
        for n in range(8):
            seen[0] = seen[0] + S[d, n] * K[t, n]
        for n in range(8):
            S[d, n] = S[d, n] + (V[d, t] - seen[0]) * K[t, n]
        Y[d, t] = seen[0]


@T.prim_func(s_tir=True)
def gated_delta_rule(
    Q: buffer("float32", L, 8),
    K: buffer("float32", L, 8),
    V: F32,
    Decay: buffer("float32", L),
    Beta: buffer("float32", L),
    S: buffer("float32", B, 8),
    Y: F32,
):
    for d, t in T.grid(B, L):
        seen = T.alloc_buffer((1,), "float32")
        seen[0] = T.float32(0)
        for n in range(8):
            S[d, n] = S[d, n] * T.exp(Decay[t])
            seen[0] = seen[0] + S[d, n] * K[t, n]
        Y[d, t] = T.float32(0)
        for n in range(8):
            S[d, n] = S[d, n] + Beta[t] * (V[d, t] - seen[0]) * K[t, n]
            Y[d, t] = Y[d, t] + S[d, n] * Q[t, n]


@T.prim_func(s_tir=True)
def dense_state_space(A: buffer("float32", 6, 6), X: F32, S: buffer("float32", B, 6)):
    for b, t in T.grid(B, L):
        new = T.alloc_buffer((6,), "float32")
        for i in range(6):
            new[i] = X[b, t]
            for j in range(6):
                new[i] = new[i] + A[i, j] * S[b, j]
        for i in range(6):
            S[b, i] = new[i]


@T.prim_func(s_tir=True)
def cellular_automaton(S: buffer("int32", 16), New: buffer("int32", 16)):
    for _t in range(L):
        for i in range(1, 15):
            New[i] = T.bitwise_xor(S[i - 1], T.bitwise_or(S[i], S[i + 1]))
        for i in range(1, 15):
            S[i] = New[i]


REFUSED = [
    Refused(logistic_map, STEP, "the state times itself"),
    Refused(quadratic_term, STEP, "one quadratic term"),
    Refused(square_root_step, STEP, "Newton's step divides by the state"),
    Refused(recurrent_network, STEP, "tanh of the state"),
    Refused(gated_recurrent_unit, STEP, "a gate that depends on the state"),
    Refused(forget_gate_of_the_output, COUPLED, "a gate that depends on the last output"),
    Refused(spiking_neuron_with_reset, STEP, "a reset by the state itself"),
    Refused(slew_limiter, STEP, "bounds that move with the state"),
    Refused(floor_of_half_the_state, STEP, "a bound that is a multiple of the state"),
    Refused(leaky_rectifier, STEP, "two slopes"),
    Refused(decaying_integer_floor, STEP, "a gate on an integer, whose products wrap, under max"),
    Refused(absolute_value, STEP, "the absolute value of the state"),
    Refused(soft_threshold, STEP, "a dead zone around zero"),
    Refused(nearly_a_maximum, STEP, "a choice of the wrong operand"),
    Refused(maximum_of_magnitudes, STEP, "a comparison of magnitudes, values kept"),
    Refused(rounded_every_step, STEP, "rounding of the state"),
    Refused(halved_integer, STEP, "integer division of the state"),
    Refused(collatz, STEP, "a branch on the state"),
    Refused(remainder_of_two_moduli, STEP, "remainders by two moduli"),
    Refused(modulus_that_changes, STEP, "a modulus that is an input"),
    Refused(squared_generator, STEP, "the square of the state"),
    Refused(linear_feedback_shift_register, STEP, "linear over bits, but across them"),
    Refused(checksum_by_table, STEP, "a table of 256 states, and a shift"),
    Refused(signed_shift_and_flip, STEP, "a shift to the right, which copies the sign"),
    Refused(shifts_both_ways, STEP, "shifts of the state in both directions"),
    Refused(automaton_of_many_states, STEP, "more states than an element holds"),
    Refused(table_at_a_shifted_state, STEP, "a table at an expression of the state"),
    Refused(wide_saturating_sum, STEP, "64-bit sums that may overflow unbounded"),
    Refused(power_of_the_state, STEP, "a power of the state"),
    Refused(unstabilised_logarithm, STEP, "a product of exponentials under the logarithm"),
    Refused(quadratic_fraction, STEP, "a quadratic numerator"),
    Refused(gate_chosen_by_the_state, STEP, "a gate chosen by the state"),
    Refused(counter_that_stops_itself, STEP, "a stop at a value of the state"),
    Refused(two_populations, COUPLED, "the product of two states"),
    Refused(coupled_maxima, COUPLED, "a matrix over (max, +)"),
    Refused(robber, COUPLED, "two states under max"),
    Refused(normalised_forward_pass, COUPLED, "normalisation in every step"),
    Refused(adaptive_step, COUPLED, "a rate that depends on the error"),
    Refused(delta_rule, COUPLED, "a dense transition of eight cells"),
    Refused(gated_delta_rule, COUPLED, "a dense transition, decayed"),
    Refused(dense_state_space, COUPLED, "a dense transition of six cells"),
    Refused(cellular_automaton, COUPLED, "cells that read their neighbours"),
]
