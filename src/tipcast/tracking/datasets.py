"""Dataset inputs of a run: where rows came from, by address and digest."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping

from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.dataset_source_registry import resolve_dataset_source
from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

MAX_DIGEST = 36
"""Characters that MLflow keeps of a digest."""


def dataset_input(uri: str, digest: str, name: str, context: str, profile: Mapping[str, object]) -> DatasetInput:
    """Describe a dataset for MLflow.

    Parameters
    ----------
    uri
        The first file, without credentials, or what stands for a source that is made.
    digest
        Digest over all of the dataset's files.
    name
        What the page calls it.
    context
        ``train``, ``validation`` or ``test``.
    profile
        Rows and other facts, kept with the dataset.

    """
    if "://" not in uri or uri.startswith(("s3://", "https://", "http://", "file://")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a path may be read as two kinds of source; the first is right
            source = resolve_dataset_source(uri)
    else:
        source = CodeDatasetSource(tags={"made_by": uri})
    dataset = Dataset(
        name=name,
        digest=digest[:MAX_DIGEST],
        source_type=source._get_source_type(),
        source=source.to_json(),
        profile=json.dumps(dict(profile), allow_nan=False),
    )
    return DatasetInput(dataset, tags=[InputTag(MLFLOW_DATASET_CONTEXT, context)])
