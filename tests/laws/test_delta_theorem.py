"""The theorem of ``extract_delta`` in exact arithmetic: with gates, and with matrices for gates."""

from fractions import Fraction

import numpy as np
import pytest

ROWS, COLUMNS, STEPS = 3, 2, 6


def draw(rng, *shape):
    """Fractions, some of which are 0."""
    numbers = rng.integers(-3, 4, shape)
    return np.vectorize(lambda n: Fraction(int(n), 2), otypes=[object])(numbers)


def titans(rng):
    """Gates, vectors and drives of a memory with a momentum, as one state of twice the rows.

    ``S' = n S - k (k . M - v)`` and ``M' = (1 - a) M + S'``: a row of M and one of S have the
    matrix ((1 - a, n), (0, n)), which is diagonal in no basis that all steps share.
    """
    zero, eye = np.full((ROWS, ROWS), Fraction(0)), np.diag([Fraction(1)] * ROWS)
    k, v = draw(rng, STEPS, ROWS), draw(rng, STEPS, COLUMNS)
    a, n = draw(rng, STEPS), draw(rng, STEPS)
    gates = [np.block([[(1 - a[t]) * eye, n[t] * eye], [zero, n[t] * eye]]) for t in range(STEPS)]
    into = [-np.concatenate([k[t], k[t]]) for t in range(STEPS)]
    source = [np.concatenate([k[t], zero[0]]) for t in range(STEPS)]
    return gates, into, source, [-v[t] for t in range(STEPS)]


def gated(rng):
    """The gated delta rule with a gate for each row."""
    k, v, g = draw(rng, STEPS, ROWS), draw(rng, STEPS, COLUMNS), draw(rng, STEPS, ROWS)
    return [np.diag(g[t]) for t in range(STEPS)], list(-k), list(k), list(-v)


@pytest.mark.parametrize("rule", [gated, titans])
@pytest.mark.parametrize("seed", range(3))
def test_a_chunk_is_a_triangular_system(rule, seed):
    rng = np.random.default_rng(seed)
    gates, into, source, drive = rule(rng)
    first = draw(rng, len(into[0]), COLUMNS)
    state, of_loop = first, []
    for t in range(STEPS):
        amount = drive[t] + source[t] @ state
        of_loop.append(amount)
        state = gates[t] @ state + np.outer(into[t], amount)

    def between(s, t):
        """Product of the gates of the steps from s on and before t."""
        product = np.diag([Fraction(1)] * len(into[0]))
        for step in range(s, t):
            product = gates[step] @ product
        return product

    amounts = []
    for t in range(STEPS):
        before = between(0, t) @ first
        for s in range(t):
            before = before + between(s + 1, t) @ np.outer(into[s], amounts[s])
        amounts.append(drive[t] + source[t] @ before)
    last = between(0, STEPS) @ first
    for s in range(STEPS):
        last = last + between(s + 1, STEPS) @ np.outer(into[s], amounts[s])
    assert all((one == other).all() for one, other in zip(amounts, of_loop, strict=True))
    assert (last == state).all()
