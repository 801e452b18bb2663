"""A small network on tipcast's rows, trained over many GPUs by PyTorch's DistributedDataParallel.

    pip install 'tipcast[torch]'
    # two processes on cores
    torchrun --nproc-per-node 2 examples/network_ddp.py data.rows=1000000
    # a GPU each, through NCCL
    torchrun --nproc-per-node 2 examples/network_ddp.py backend=gpu data.rows=8000000

The words are those of `tipcast train`, so that any data and any task of two classes will do.
Boosted trees and forests need none of this: their libraries train over several GPUs by themselves.
Of a network the gradients are averaged after each batch; each process holds its share of the rows,
and the first one records the run."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import mlflow
import numpy as np
from sklearn.metrics import roc_auc_score

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed. Fix: pip install 'tipcast[torch]'")

from tipcast.commands import compose_jobs
from tipcast.compute.frames import CpuFrames
from tipcast.datasets.prepare import draw_all, prepare_part
from tipcast.jobs.train_plan import make_plan

EPOCHS = 3
BATCH = 4096
RATE = 2e-3


def own_rows(listing: Any, recipe: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Read this process's share of a listing, the first split of it: (rows, features) and (rows,),
    float32.
    """
    rank = dist.get_rank()
    processes = dist.get_world_size()
    # all read them, and each takes its rows
    few = len(listing.parts) < processes or recipe.draw
    own = listing.parts if few else listing.parts[rank::processes]
    prepared = [
        splits[0]
        for splits in draw_all([prepare_part(part, CpuFrames(), recipe) for part in own], recipe)
    ]
    sides = ([rows.x for rows in prepared], [rows.y for rows in prepared])
    x, y = (np.concatenate([np.asarray(each, np.float32) for each in side]) for side in sides)
    chosen = slice(rank, None, processes) if few else slice(None)

    return torch.from_numpy(x[chosen]).to(device), torch.from_numpy(y[chosen]).to(device)


def summed(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over all processes."""
    dist.all_reduce(values)
    return values


def trained(x: torch.Tensor, y: torch.Tensor, seed: int) -> nn.Module:
    """Train by batches of each process's own rows, as many in each."""
    torch.manual_seed(seed)
    network: nn.Module = nn.Sequential(
        nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    ).to(x.device)
    together = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(together.parameters(), RATE)
    loss = nn.BCEWithLogitsLoss()
    batches = torch.tensor(-(-len(x) // BATCH))
    fewest = batches.to(x.device)
    dist.all_reduce(fewest, dist.ReduceOp.MIN)

    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x), device=x.device).chunk(int(batches))[: int(fewest)]:
            optimizer.zero_grad()
            loss(together(x[chosen]).squeeze(1), y[chosen]).backward()
            optimizer.step()

    return network


def main() -> None:
    """Train, test and record."""
    (composed,) = compose_jobs("train", sys.argv[1:])
    config = composed.config
    gpu = config.backend.name == "gpu"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)

    dist.init_process_group("nccl" if gpu else "gloo")
    plan = make_plan(config)
    if not plan.task.kind.has_positive:
        raise SystemExit(f"task={plan.task.name} has no two classes")

    x, y = own_rows(plan.train, plan.recipe, device)
    rows = int(summed(torch.tensor(len(x), device=device)))
    mean = summed(x.double().sum(0)) / rows
    scale = (summed(((x - mean) ** 2).sum(0)) / rows).sqrt().clamp(min=1e-9)
    start = time.perf_counter()
    network = trained(((x - mean) / scale).float(), y, config.seed)
    seconds = time.perf_counter() - start
    x, y = own_rows(plan.test, plan.test_recipe, device)
    with torch.no_grad():
        scores = network(((x - mean) / scale).float()).squeeze(1).sigmoid().cpu().numpy()

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (scores, y.cpu().numpy()))
    if dist.get_rank() == 0:
        scores, labels = (np.concatenate(side) for side in zip(*found, strict=True))
        mlflow.set_tracking_uri(
            config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        )
        mlflow.set_experiment(config.tracking.experiment or "tipcast")
        with mlflow.start_run(run_name="network"):
            mlflow.log_params(
                {"processes": dist.get_world_size(), "epochs": EPOCHS, "batch": BATCH, "rate": RATE}
            )
            auc = float(roc_auc_score(labels, scores))
            mlflow.log_metrics(
                {
                    "test/auc": auc,
                    "seconds/fit": seconds,
                    "train/rows": rows,
                    "test/rows": len(labels),
                }
            )

        print(
            f"{dist.get_world_size()} x {device.type}: {rows:,} rows, "
            f"fit {seconds:.1f} s, test/auc {auc:.4f}"
        )

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
