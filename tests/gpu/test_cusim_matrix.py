"""Products on the simulated tensor cores: layouts of fragments, tf32, who must come, and races."""

import numpy as np
import pytest
import tvm

from tests.gpu.test_cusim import LaunchError, elementwise, with_body
from tests.support import cusim
from tests.support.cuda_harness import compile_cuda

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="tests of the simulator itself"),
]

#: x holds A, 16 x 8, and B, 8 x 8; y holds C, 16 x 8, and gets D. Fragments as PTX ISA has them.
HEAD = """
__shared__ float ab[192];
int t = threadIdx.x, row = t / 4, four = t % 4;
if (t == 0) for (int i = 0; i < 192; ++i) ab[i] = x_ptr[i];
if (t >= 32) return;
__syncwarp();  // the cells are there
const unsigned* a = (const unsigned*)ab; const unsigned* b = a + 128;
unsigned a0 = a[row * 8 + four], a1 = a[(row + 8) * 8 + four], a2 = a[row * 8 + four + 4];
unsigned a3 = a[(row + 8) * 8 + four + 4], b0 = b[four * 8 + row], b1 = b[(four + 4) * 8 + row];
float* c = y_ptr + row * 8 + 2 * four;
"""
#: The instruction is one text, as the project's kernels have it.
PRODUCT = (
    'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, '
    '{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" '
    ': "=f"(c[0]), "=f"(c[1]), "=f"(c[64]), "=f"(c[65]) '
    ': "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), '
    '"f"(c[0]), "f"(c[1]), "f"(c[64]), "f"(c[65]));'
)
#: Changes of the program by their names.
CHANGES = {
    "as it is": [],
    "unordered": [("__syncwarp();", "")],
    "half a warp": [("if (t >= 32) return;", "if (t >= 16) return;")],
    "all but one": [("if (t >= 32) return;", "if (t >= 32 || t == 7) return;")],
    "diverged": [("float* c =", "if (t == 7) __syncwarp();\nfloat* c =")],
}


@pytest.fixture(scope="module")
def run():
    """All changes are one module, and one run of the compiler."""
    cases = []
    for at, changes in enumerate(CHANGES.values()):
        text = HEAD + PRODUCT
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        cases.append(f"if (x_ptr[192] == {at}) {{ {text} }}")
    with cusim.rewritten_source(with_body(*cases)):
        func = elementwise("float32", lambda v: v, blocks=1, threads=256)
        function = compile_cuda(func)["main"]

    def call(name, a, b, c, seed=0):
        given, out = np.zeros((2, 256), "float32")
        given[:128], given[128:192], given[192] = a.ravel(), b.ravel(), list(CHANGES).index(name)
        out[:128] = c.ravel()
        x, y = (tvm.runtime.tensor(array, tvm.cuda(0)) for array in (given, out))
        with cusim.settings(seed=seed, race=True):
            function(x, y)
        return y.numpy()[:128].reshape(16, 8)

    return call


def cut(array):
    """The numbers that tensor cores see: without the low 13 bits."""
    return (array.view("uint32") & np.uint32(0xFFFFE000)).view("float32")


def drawn(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = ((16, 8), (8, 8), (16, 8))
    return [(scale * rng.standard_normal(shape)).astype("float32") for shape in shapes]


@pytest.mark.parametrize("seed", range(3))
def test_a_product_of_fragments(run, seed):
    a, b, c = drawn(seed)
    exact = cut(a).astype("float64") @ cut(b).astype("float64") + c
    terms = np.abs(cut(a)[:, :, None] * cut(b)[None]).max(1)
    got = run("as it is", a, b, c, seed)
    # Nine terms, each cut to the 24 bits of the largest, and their sum once more.
    np.testing.assert_array_less(np.abs(got - exact), 10 * 2.0**-23 * np.maximum(terms, np.abs(c)))
    assert np.abs(got - (a.astype("float64") @ b + c)).max() > 2.0**-16, "expected tf32's rounding"
    np.testing.assert_array_equal(run("as it is", cut(a), cut(b), c), got)


def test_whole_numbers_are_exact(run):
    a, b, c = (np.rint(array) for array in drawn(5, 20.0))
    np.testing.assert_array_equal(run("as it is", a, b, c), a @ b + c)


def test_what_is_not_finite_stays_in_its_row_and_column(run):
    a, b, c = drawn(6)
    a[3, 2], b[5, 4] = np.nan, np.inf
    finite = np.isfinite(run("as it is", a, b, c))
    assert not finite[3].any() and not finite[:, 4].any()
    assert finite[np.arange(16) != 3][:, np.arange(8) != 4].all()


def test_reads_of_shared_memory_are_seen(run):
    for seed in range(3):
        with pytest.raises(LaunchError, match="race on shared memory"):
            run("unordered", *drawn(0), seed)


def test_all_lanes_must_come(run):
    with pytest.raises(LaunchError, match=r"calls mma\.sync at .* with 16 lanes of its warp"):
        run("half a warp", *drawn(0))
    with pytest.raises(LaunchError, match=r"calls mma\.sync at .* with 31 lanes"):
        run("all but one", *drawn(0))
    with pytest.raises(LaunchError, match=r"waits in (mma\.sync|__syncwarp) with mask 0xffffffff"):
        run("diverged", *drawn(0))
