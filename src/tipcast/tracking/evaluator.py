"""`mlflow.models.evaluate` of tipcast's classifiers: MLflow's own evaluator, given labels and probabilities.

MLflow takes what a pyfunc predicts for labels, and asks only its own flavors for probabilities
(https://github.com/mlflow/mlflow/issues/5337).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models.evaluation.base import EvaluationResult
from mlflow.models.evaluation.evaluators.classifier import ClassifierEvaluator


class TipcastEvaluator(ClassifierEvaluator):
    """Evaluates tipcast's models of two or more classes; an entry point makes it known as ``tipcast``."""

    name = "tipcast"
    label_list: Any

    def evaluate(self, *, model: Any = None, **arguments: Any) -> Any:
        """Return MLflow's metrics and figures of a classifier; of other models, which may be asked too, nothing."""
        if "tipcast" not in (getattr(getattr(model, "metadata", None), "metadata", None) or {}):
            return EvaluationResult({}, {}, None)
        return super().evaluate(model=model, **arguments)

    def _generate_model_predictions(self, model: Any, input_df: Any) -> tuple[Any, Any]:
        """Return labels, (rows,), and the probabilities of all classes, (rows, classes), in the labels' order."""
        labels = list(model.unwrap_python_model().manifest["labels"])
        chosen = {name: float(value) for name, value in self.evaluator_config.items() if name == "threshold"}
        found = model.predict(input_df, params={"output": "label", **chosen})
        if found.dtype == object and any(label is None for label in found):
            what = "a row has a value that cannot be, and so no label"
            raise MlflowException.invalid_parameter_value(f"{what}. Fix: leave out rows without a probability")
        p = np.asarray(model.predict(input_df))
        if p.ndim == 1:
            p = np.stack([1 - p, p], axis=1)
        if self.label_list is None:
            self.label_list = labels
        return found, p[:, np.argsort(np.asarray(labels))]
