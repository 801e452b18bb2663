"""Load a registered model behind `mlflow models serve` on 127.0.0.1: requests a second and how long
they take.

    PYTHONPATH=src python benchmarks/serving.py \\
        [--seconds 3] [--clients 1 4] [--rows 1 1000] [--out FOLDER]

Each client keeps one connection and sends its next request when the last one is answered. Both
forms are sent: JSON (`dataframe_split`) and CSV. Beside it is the same model called within a
process, which is what no server can beat.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd

from harness import options, write_result

START_S = 90
MOST_REQUESTS = 20_000


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__, seconds=3.0, clients=[1, 4], rows=[1, 1000], models=["xgboost", "random_forest"]
    )
    results = []
    with tempfile.TemporaryDirectory(prefix="tipcast-") as folder, contextlib.chdir(folder):
        store = f"sqlite:///{folder}/mlflow.db"
        for name in given.models:
            train(name, store)
            for rows in given.rows:
                results.append(
                    within(f"models:/{name}/1", store, rows, given.seconds) | {"model": name}
                )
                print(told(results[-1]))
            with served(f"models:/{name}/1", store) as port:
                for rows in given.rows:
                    for form, body in bodies(rows).items():
                        for clients in given.clients:
                            found = load(port, body, form, clients, given.seconds)
                            results.append({"model": name, "rows": rows, **found})
                            print(told(results[-1]))

    print(write_result("serving", results, **vars(given)))


def train(name: str, store: str) -> None:
    """Register a model of 200,000 synthetic trips."""
    words = ["train", f"model={name}", f"tracking.uri={store}", f"tracking.register={name}"]
    subprocess.run([sys.executable, "-m", "tipcast", *words], check=True, stdout=subprocess.DEVNULL)


def trips(rows: int) -> pd.DataFrame:
    """Return raw trips of April 2019."""
    r = np.random.default_rng(0)
    times = np.datetime64("2019-04-01", "s") + r.integers(0, 30 * 86_400, rows).astype(
        "timedelta64[s]"
    )
    return pd.DataFrame(
        {
            "tpep_pickup_datetime": times,
            "passenger_count": r.integers(1, 6, rows),
            "PULocationID": r.integers(1, 264, rows),
            "DOLocationID": r.integers(1, 264, rows),
        }
    )


def bodies(rows: int) -> dict[str, bytes]:
    """Return content type -> body of the same trips."""
    sent = trips(rows)
    split = json.loads(sent.to_json(orient="split", date_format="iso", index=False))
    return {
        "application/json": json.dumps({"dataframe_split": split}).encode(),
        "text/csv": sent.to_csv(index=False).encode(),
    }


def within(uri: str, store: str, rows: int, seconds: float) -> dict[str, Any]:
    """Call the model within this process."""
    mlflow.set_tracking_uri(store)
    model, sent = mlflow.pyfunc.load_model(uri), trips(rows)
    found = measured(lambda: model.predict(sent), seconds)
    return {"rows": rows, "form": "within the process", "clients": 1, **summary([found], seconds)}


def load(port: int, body: bytes, form: str, clients: int, seconds: float) -> dict[str, Any]:
    """Send requests from so many connections."""
    found: list[list[float]] = []

    def client() -> None:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        ) as connection:

            def ask() -> None:
                connection.request("POST", "/invocations", body, {"Content-Type": form})
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200:
                    raise SystemExit(content.decode())

            found.append(measured(ask, seconds))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < clients:
        raise SystemExit("a client failed")
    return {"form": form, "clients": clients, **summary(found, seconds)}


def measured(work: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds of each call, for so many seconds after a tenth of them as warm-up."""
    end = time.perf_counter() + seconds / 10
    while time.perf_counter() < end:
        work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end and len(times) < MOST_REQUESTS:
        work()
        times.append(time.perf_counter() - start)
    return times


def summary(found: list[list[float]], seconds: float) -> dict[str, float]:
    """Return requests a second of all clients together, and the percentiles of one request."""
    times = np.concatenate(found)
    rate = sum(len(each) / sum(each) for each in found)
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1000
    return {
        "requests": len(times),
        "requests_per_s": float(rate),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }


def told(result: dict[str, Any]) -> str:
    """Return a line for people."""
    return (
        f"{result['model']:<14} {result['form']:<20} {result['rows']:>5} rows "
        f" {result['clients']} clients  "
        f"{result['requests_per_s']:8.1f} requests/s  p50 {result['p50_ms']:.2f} ms  "
        f"p99 {result['p99_ms']:.2f} ms"
    )


@contextlib.contextmanager
def served(uri: str, store: str) -> Iterator[int]:
    """Serve a model on a port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "mlflow",
                "models",
                "serve",
                "-m",
                uri,
                "--env-manager",
                "local",
            ),
            *("--host", "127.0.0.1", "-p", str(port)),
        ],
        env={**os.environ, "MLFLOW_TRACKING_URI": store, "PATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait(process, port)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(20)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise SystemExit("the server does not answer")


if __name__ == "__main__":
    main()
