"""The laws of algebras on exact arithmetic and by proof, and the order of what does not commute."""

from tests.support.tiers import Folder

ALGEBRAS = (
    "affine_on_integers",
    "affine_on_rationals",
    "reductions_on_integers",
    "float_max_and_min_with_nan_follow_the_targets_own_loop[max-True-llvm]",
    "float_max_and_min_with_nan_follow_the_targets_own_loop[min-False-cuda]",
    "constant_on_the_neutral_carry_gives_the_value",
    "coefficients_are_exact_and_symbolic",
    "no_family_takes_a_product_of_carries",
    "overflowed_gates_keep_a_zero_state",
    "a_maximum_in_which_nan_wins_is_found_and_obeys_the_laws",
    "near_misses_of_it_are_refused",
)
#: A representative of each family.
LAWS = (
    "add",
    "chosen max",
    "affine",
    "low bits of wider sums",
    "modular",
    "clamp, NaN",
    "clamp, integers",
    "bounded affine, NaN",
    "shifts by an input",
    "automaton",
    "lag two",
    "masks",
    "switch",
    "linear fractional",
    "second order",
    "complex",
    "logsumexp",
    "reset, non-finite",
    "declared",
)
PROOFS = (
    "bool-switch",
    "int8-affine",
    "int8-saturating",
    "int32-between",
    "int32-residues",
    "int32-automaton",
    "uint8-bits",
    "uint8-reset",
    "uint16-shifted by an input",
    "int16-every other step",
    "int8-second order",
    "float32-affine",
    "float32-between",
    "float32-complex",
    "float32-fraction",
    "float32-max",
    "float32-stabilised",
)

FOLDER = Folder(
    quick=(
        *(f"test_algebras.py::test_{name}" for name in ALGEBRAS),
        "test_families.py::test_every_family_has_a_law_test",
        "test_families.py::test_near_misses",
        *(f"test_families.py::test_laws[{name}-*" for name in LAWS),
        "test_proofs.py::test_the_table_covers_all_families_and_widths",
        *(f"test_proofs.py::test_what_is_taken_is_proven[{name}]" for name in PROOFS),
        "test_refutations.py::test_sums_that_wrap_around_are_not_combined_in_64_bits",
        "test_refutations.py::test_residues_of_what_wraps_around[uint8-31-251-False]",
    ),
    # Signed ones of 8 and 32 bits are proven always; these are alike.
    full=tuple(
        f"test_proofs.py::test_what_is_taken_is_proven[{dtype}-*"
        for dtype in ("int64", "uint32", "uint64", "float64")
    )
    # Of 8 and 16 bits, and every second step of 32, it is proven in a tenth of the time.
    + (
        "test_proofs.py::test_what_is_taken_is_proven[int32-every third step]",
        # The suite has it in the default tier: decaying_floor.
        "test_proofs.py::test_what_is_taken_is_proven[float32-gate between bounds]",
    ),
    alike={
        "test_translation.py": 2,
        "test_refutations.py::test_a_wrong_algebra_is_refuted": 2,
        "test_refutations.py::test_residues_of_what_wraps_around": 2,
        # In the same way as signed ones of 8 bits, all of which are proven.
        "test_proofs.py::test_what_is_taken_is_proven[uint8-*": 2,
        "test_proofs.py::test_what_is_taken_is_proven[int16-*": 2,
        "test_proofs.py::test_what_is_taken_is_proven[uint16-*": 2,
    },
    gpu=("test_order.py::test_cuda",),
)
