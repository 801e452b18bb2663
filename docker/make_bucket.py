"""Make the bucket of MLFLOW_S3_ENDPOINT_URL that MLflow's artifacts go to; one that is there stays
as it is.
"""

from __future__ import annotations

import os

import boto3
from botocore.exceptions import ClientError

s3 = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
bucket = os.environ["BUCKET"]
try:
    s3.head_bucket(Bucket=bucket)
except ClientError as problem:
    if problem.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
        raise
    s3.create_bucket(Bucket=bucket)
print(f"bucket {bucket} is there")
