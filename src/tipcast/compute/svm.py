"""cuML's support-vector classifier, under the names of scikit-learn's parameters."""

from __future__ import annotations

from typing import Any


def machine(**params: Any) -> Any:
    """Return a classifier that takes and gives host arrays and computes on this process's GPU.

    Parameters
    ----------
    **params
        Of ``cuml.svm.SVC``.

    """
    from cuml.svm import SVC

    return SVC(**params, output_type="numpy")
