"""XGBoost: boosted trees, and a random forest as one round of many trees.

The fits are in ``xgboost_fit``, which loads the library.
"""

import logging
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from tipcast.config.errors import TipcastError
from tipcast.models import base
from tipcast.models.base import Estimator, Fitted, Progress, Split
from tipcast.models.checkpoints import Checkpoint, newest, resumes_exactly
from tipcast.models.xgboost_params import ABOVE_ZERO, HINTS, PARAMS, try_params
from tipcast.tasks.kinds import Boosting

if TYPE_CHECKING:
    from distributed import Client

    from tipcast.models.xgboost_fit import Matrices

LOG = logging.getLogger("tipcast")

TREES = 100
"""Trees where none are configured."""
SEVERAL_GPUS = 84e9
"""Values times trees from which two GPUs train faster than one: 120 million rows of 7 features, 100
trees.
"""


@dataclass(frozen=True)
class Training:
    """A training in XGBoost's terms."""

    params: Mapping[str, Any]
    """Parameters by XGBoost's own names."""
    rounds: int
    early_stopping_rounds: int | None
    """Rounds without improvement that end the training; None to run all rounds."""


@final
@dataclass(frozen=True)
class XGBoost(Estimator):
    """One booster, trained inside one process or by all workers together, by ``xgboost.dask``."""

    checkpoint: Checkpoint | None = None
    """What the training goes on from; None to begin it."""
    keep_in: str = ""
    """Variable of Dask's scheduler in which checkpoints are kept; empty to keep none."""

    @property
    def checkpoint_s(self) -> float | None:
        """Least seconds between two checkpoints of a training; None to keep none."""
        seconds: float | None = self.fit_settings.get("checkpoint_s")
        return seconds

    def newest_checkpoint(self, contents: Iterable[bytes]) -> bytes:
        """Return the checkpoint of the most rounds; empty if none is whole."""
        return newest(contents)

    def resuming(self, checkpoint: bytes, keep_in: str) -> "XGBoost":
        """Return the estimator that goes on from a checkpoint; a damaged one is as good as none."""
        if self.checkpoint_s is None:
            return self

        whole = Checkpoint.from_bytes(checkpoint)
        if whole:
            LOG.info("fit      continues after round %d", whole.rounds)
            if not resumes_exactly(self.params):
                import xgboost

                LOG.warning("XGBoost %s samples other rows after a checkpoint", xgboost.__version__)
        return replace(self, checkpoint=whole, keep_in=keep_in)

    def after_folds(self, infos: Sequence[Mapping[str, str | float]]) -> "XGBoost":
        """Return the training of as many rounds as the folds agree on: the median of their best
        numbers, if they stop early.
        """
        training = self.to_xgboost()
        best = [info["best_iteration"] for info in infos if "best_iteration" in info]
        if training.early_stopping_rounds is None or not best:
            return self

        rounds = 1 + round(statistics.median(map(float, best)))
        trees = rounds * training.params["num_parallel_tree"]
        return replace(
            self,
            params={**self.params, "n_estimators": trees},
            fit_settings={
                **self.fit_settings,
                "num_boost_round": rounds,
                "early_stopping_rounds": None,
            },
        )

    def stuck_workers(self, client: "Client") -> list[str]:
        """Return the workers whose training thread still waits for a worker that is lost."""
        from tipcast.models.xgboost_workers import busy_threads

        return busy_threads(client)

    @property
    def takes_categories(self) -> bool:
        """Yes, as sets."""
        return True

    @property
    def takes_missing(self) -> bool:
        """Yes: each split learns the side of missing values."""
        return True

    @property
    def takes_weights(self) -> bool:
        """Yes: they scale the gradients of rows, and the metric of validation rows."""
        return True

    def gains_from(self, gpus: int, rows: int, features: int) -> bool:
        """Yes, if the trees save more than the three seconds that NCCL takes to start."""
        trees = self.params.get("n_estimators") or TREES
        return bool(rows * features * trees >= SEVERAL_GPUS)

    @property
    def bins_parts(self) -> bool:
        """Yes: a binned value takes a byte."""
        return True

    def to_xgboost(self) -> Training:
        """Return the training in XGBoost's terms.

        ``n_estimators`` counts trees, which are spread over ``num_boost_round`` rounds; null means
        one tree a round. A parameter that is null is left to XGBoost. Raises C001 for an unknown
        name, C003 for an impossible value.
        """
        base.check_names("params", self.params, PARAMS, HINTS)
        settings = {"num_boost_round", "early_stopping_rounds", "checkpoint_s"}
        base.check_names("fit", self.fit_settings, settings, base.below_params(PARAMS))

        params = self._set_params()
        boosting = self._boosting()
        self._check_metrics(params.setdefault("eval_metric", boosting.metric), boosting)

        trees = base.positive("model.params.n_estimators", params.pop("n_estimators", TREES))
        rounds = self._rounds(trees)
        early_stopping_rounds = self.fit_settings.get("early_stopping_rounds")
        if early_stopping_rounds is not None:
            base.positive("model.fit.early_stopping_rounds", early_stopping_rounds)
        if self.checkpoint_s is not None:
            base.positive("model.fit.checkpoint_s", self.checkpoint_s, whole=False)

        params = {
            "objective": boosting.objective,
            "device": self.device,
            "num_parallel_tree": trees // rounds,
            **params,
        }
        if self.kind.column_per_class:
            params["num_class"] = self.classes or 2
        return Training(params, rounds, early_stopping_rounds)

    def _set_params(self) -> dict[str, Any]:
        """Return the parameters that are not null; C003 for a 0 at which nothing is learned."""
        params = {name: value for name, value in self.params.items() if value is not None}
        if params.get("tree_method") == "gpu_hist":
            params["tree_method"] = "hist"

        for name in ABOVE_ZERO:
            if name in params:
                base.positive(f"model.params.{name}", params[name], whole=False)
        return params

    def _boosting(self) -> Boosting:
        """Return how XGBoost learns the kind of task; C003 if it cannot."""
        boosting = self.kind.boosting
        if boosting is None:
            what = f"XGBoost has no objective for {self.kind}"
            raise TipcastError("C003", "task.kind", what, "choose another model")
        return boosting

    def _check_metrics(self, metrics: str | list[str], boosting: Boosting) -> None:
        """Refuse (C003) a metric that means nothing for the kind of task."""
        if isinstance(metrics, str):
            metrics = [metrics]

        for metric in metrics:
            if not boosting.metrics.fullmatch(str(metric)):
                what = f"{metric} is not a metric for {self.kind}"
                fix = f"use {boosting.metric}, or null for it"
                raise TipcastError("C003", "model.params.eval_metric", what, fix)

    def _rounds(self, trees: int) -> int:
        """Return the number of rounds that trees are spread over; C003 if it does not divide
        them.
        """
        configured = self.fit_settings.get("num_boost_round") or trees
        rounds: int = base.positive("model.fit.num_boost_round", configured)
        if trees % rounds:
            what = f"{trees} trees cannot be divided evenly over {rounds} rounds"
            fix = "set it to null or to a divisor of model.params.n_estimators"
            raise TipcastError("C003", "model.fit.num_boost_round", what, fix)
        return rounds

    @property
    def bins(self) -> Any:
        """Most bins of a feature; XGBoost's default is 256."""
        bins = self.params.get("max_bin")
        if bins is None:
            return 256
        return bins

    def check(self) -> None:
        """Refuse parameters that XGBoost would: it checks the values in one round on eight rows."""
        params = self.to_xgboost().params
        if self.params.get("tree_method") == "gpu_hist":
            backend = {"cuda": "gpu"}.get(self.device, self.device)
            message = "tree_method=gpu_hist is now hist: backend=%s decides the device"
            LOG.warning(message, backend)

        try_params(params, self.bins)

    @property
    def sharing(self) -> Hashable:
        """What binned rows depend on."""
        return self.bins, self.categorical

    @property
    def continues(self) -> bool:
        """Yes, unless one round has several trees."""
        return self.fit_settings.get("num_boost_round") is None

    def prepared(self, rows: Split, threads: int) -> "Matrices":
        """Bin rows, once for all fits that share them."""
        from tipcast.models import xgboost_fit

        return xgboost_fit.prepare(self, rows, threads)

    def fit(self, rows: "Split | Matrices", seed: int, threads: int = 1) -> Fitted:
        """Train; with validation rows stop early and keep the best rounds.

        Fits in several threads may share the rows.
        """
        from tipcast.models import xgboost_fit

        return xgboost_fit.fit(self, rows, seed, threads)

    def continue_fit(self, rows: "Matrices", seed: int, earlier: Checkpoint | None) -> Fitted:
        """Train for the rounds that are missing, and not at all if the earlier fit stopped early;
        the state is a checkpoint.

        An XGBoost that would draw other rows or columns after a checkpoint begins again.
        """
        from tipcast.models import xgboost_fit

        return xgboost_fit.continue_fit(self, rows, seed, earlier)

    def load_fit(self, workers: int, rows: int) -> None:
        """Import XGBoost's module for Dask if there are several workers."""
        if workers > 1:
            import xgboost.dask  # noqa: F401 - and with it Dask's DataFrame

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Train as ``fit`` does, each worker on the rows that it holds. XGBoost does not tell its
        progress.
        """
        from tipcast.models import xgboost_fit

        return xgboost_fit.fit_together(self, client, rows, seed)
