"""Hydra's launcher `dask`: the jobs of a `--multirun` as tasks of a Dask cluster."""
