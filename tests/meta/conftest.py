"""The search, its records, and TVM's own tuners with our space."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=(
        "test_database.py",
        "test_files.py",
        "test_nearest.py",
    ),
    full=("test_rpc.py::test_a_tracker_or_a_last_machine_that_goes_away_ends_the_search[stopped]",),
    alike={
        "test_cost_model.py::test_its_ranking_of_unseen_plans_beats_chance": 2,
        "test_search.py": 3,
        "test_space.py::test_beside_the_default_rules_of_tvm": 2,
        "test_space.py::test_sampled_traces_are_stock_scalar_and_replay_to_the_kernel": 2,
    },
    gpu=("test_search.py::test_a_function_bound_to_threads_is_tuned_as_any_other",),
)
