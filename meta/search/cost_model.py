"""The cost model of a search: times of plans, learnt from those that were measured.

XGBoost on one row for each candidate. TVM's own ``XGBModel`` has a row for each store, takes the
sum of their predictions for the candidate's, and trains them by a loss whose second derivative it
gives as that of one row. A step is then too long by as many times as a candidate has rows that lie
in one leaf: at its rate of 0.2, an unrolled kernel with more than ten stores that look alike makes
every round worse than the last, from 10 to infinity to NaN, and the search follows the NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_scan.errors import ScanError
from tvm_scan.meta.search.features import CandidateRows

#: Shallow trees that see a third of the features at a node each: there are a dozen rows at first.
_PARAMETERS = {"max_depth": 3, "eta": 0.1, "colsample_bynode": 0.3, "nthread": 1, "verbosity": 0}
_ROUNDS = 100
#: How many have to be known before anything is learnt from them, and in how many parts each is held
#: back once. What is predicted for them must correlate with what was measured more than one ranking
#: in ten drawn at random: so many times the deviation of such a correlation, 1 / sqrt(n - 1).
_LEAST, _PARTS, _CHANCE = 6, 4, 1.28


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's: 1 for the same order, 0 for what chance gives, -1 for the opposite order.

    Parameters
    ----------
    first, second : ndarray
        Of one length. Equal values share a rank.

    Returns
    -------
    float
        0 where all values of one of them are equal.
    """
    left, right = (_ranks(values) - (len(values) + 1) / 2 for values in (first, second))
    scale = float(np.sqrt((left**2).sum() * (right**2).sum()))
    return float((left * right).sum()) / scale if scale > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group.reshape(-1)]


class TimeModel:
    """Times of candidates, as logarithms.

    Parameters
    ----------
    seed : int
        Of the trees.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.rows: list[np.ndarray] = []
        self.seconds: list[float | None] = []
        #: Of how many rows they are.
        self._trained: tuple[int, Any] = (0, None)
        self._learnt = (0, False)

    def tell(self, row: np.ndarray, seconds: float | None) -> None:
        """Add what was measured; None where it did not run, or was wrong."""
        self.rows.append(np.asarray(row, dtype="float32"))
        self.seconds.append(seconds)

    def predict(self, rows: np.ndarray) -> np.ndarray | None:
        """Predict times, if what is held back of those measured can be predicted from the rest.

        Parameters
        ----------
        rows : ndarray
            One for each candidate.

        Returns
        -------
        ndarray or None
            Logarithms; None where nothing has been learnt, so that what chooses must do without.
        """
        if self._learnt[0] != len(self.rows):
            self._learnt = len(self.rows), self._has_learnt()
        return self.guess(rows) if self._learnt[1] else None

    def guess(self, rows: np.ndarray) -> np.ndarray:
        """Predict times, as ``predict`` does, however little is known."""
        if self._trained[0] != len(self.rows):
            self._trained = len(self.rows), _train(np.array(self.rows), self._labels(), self.seed)
        return _predicted(self._trained[1], rows)

    def _labels(self) -> np.ndarray:
        # What failed is worse than the worst, and not so much that all else is alike.
        worst = max((s for s in self.seconds if s is not None), default=1.0)
        return np.log2([2 * worst if s is None else s for s in self.seconds])

    def _has_learnt(self) -> bool:
        ran = [s for s in self.seconds if s is not None]
        if len(ran) < _LEAST or min(ran) == max(ran):
            return False
        rows, labels = np.array(self.rows), self._labels()
        held = np.random.default_rng(self.seed).permutation(len(labels)) % _PARTS
        guessed = np.zeros(len(labels))
        for part in range(_PARTS):
            booster = _train(rows[held != part], labels[held != part], self.seed)
            guessed[held == part] = _predicted(booster, rows[held == part])
        return bool(rank_correlation(guessed, labels) > _CHANCE / (len(labels) - 1) ** 0.5)

    @staticmethod
    def check_installed() -> None:
        """Raise a ``ScanError`` if XGBoost is not there."""
        try:
            import xgboost  # noqa: F401
        except ImportError:
            raise ScanError(
                "tune: expected xgboost for the cost model of a search, found none; run "
                "python -m pip install 'tvm_scan[tune]', or raise trials to the size of the space"
            ) from None


def _train(rows: np.ndarray, labels: np.ndarray, seed: int) -> Any:
    import xgboost

    data = xgboost.DMatrix(rows, label=labels, nthread=1)
    return xgboost.train({**_PARAMETERS, "seed": seed}, data, _ROUNDS)


def _predicted(booster: Any, rows: np.ndarray) -> np.ndarray:
    import xgboost

    data = xgboost.DMatrix(np.asarray(rows, dtype="float32"), nthread=1)
    return np.asarray(booster.predict(data), dtype="float64")


@derived_object
class StockModel(ms.cost_model.PyCostModel):
    """A ``TimeModel`` for each task of TVM's own searches.

    Parameters
    ----------
    seed : int
        Of the trees, and of the order where nothing has been learnt.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.random = np.random.default_rng(seed)
        self.rows: dict[str, CandidateRows] = {}
        self.models: dict[str, TimeModel] = {}

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Learn from what was measured."""
        rows, model = self._task(context)
        for row, result in zip(rows.of(context, candidates), results, strict=True):
            ran = [float(s) for s in result.run_secs or []]
            model.tell(row, float(np.median(ran)) if ran else None)

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """Return the best time over that of each candidate; at random where nothing is learnt."""
        rows, model = self._task(context)
        scores = model.predict(rows.of(context, candidates))
        if scores is None:
            return self.random.random(len(candidates))
        best = min(s for s in model.seconds if s is not None)
        return np.asarray(np.exp2(np.log2(best) - scores))

    def _task(self, context: ms.TuneContext) -> tuple[CandidateRows, TimeModel]:
        key = str(tvm_ffi.structural_hash(context.mod))
        rows = self.rows.setdefault(key, CandidateRows())
        return rows, self.models.setdefault(key, TimeModel(self.seed))

    def save(self, path: str) -> None:
        """Write what was measured."""
        arrays: dict[str, Any] = {}
        for key, model in self.models.items():
            seconds = [np.nan if s is None else s for s in model.seconds]
            arrays |= {f"{key}.rows": np.array(model.rows), f"{key}.seconds": np.array(seconds)}
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    def load(self, path: str) -> None:
        """Learn from what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            for key in {name.partition(".")[0] for name in arrays.files}:
                model = self.models[key] = TimeModel(self.seed)
                for row, second in zip(
                    arrays[f"{key}.rows"], arrays[f"{key}.seconds"], strict=True
                ):
                    model.tell(row, None if np.isnan(second) else float(second))
