"""A worker process may die while trees grow, or while rows are scored."""

import os
import signal

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.fit import predict, send_saved_scorer


def _futures(client, rows, sizes=(3000, 1500, 2500, 2000)):
    parts = [client.submit(rows, n, seed, pure=False) for seed, n in enumerate(sizes)]
    x = [client.submit(lambda part: part[0], part, pure=False) for part in parts]
    y = [client.submit(lambda part: part[1], part, pure=False) for part in parts]
    return x, y


def test_forest_survives_the_death_of_a_worker(short_lived, parts, spec, joined, rows):
    x, y = (side[:3] for side in _futures(short_lived, rows))
    small = {"n_estimators": 40, "max_depth": 8}
    victims = list(short_lived.run(os.getpid).values())

    def kill(done: int, _: int) -> None:
        if victims and done < 40:
            os.kill(victims.pop(), signal.SIGKILL)
            victims.clear()

    model = build(spec("random_forest", **small), "cpu").fit_distributed(
        short_lived, Split(x, y), 5, progress=kill
    )
    assert not victims
    whole = RandomForestClassifier(**small, random_state=5).fit(
        *(part.to_numpy() for part in joined(parts[:3]))
    )
    held_out = parts[3][0]
    np.testing.assert_array_equal(
        model.scorer.score(held_out), whole.predict_proba(held_out.to_numpy())[:, 1]
    )


def test_scoring_survives_the_worker_that_held_the_scorer(
    short_lived, parts, spec, joined, rows, tmp_path
):
    x, _ = _futures(short_lived, rows)
    model = build(spec("logistic"), "cpu").fit(Split(*joined(parts[:3])), seed=0)
    held = send_saved_scorer(short_lived, model.save(tmp_path), model.format, "cpu")
    first = predict(short_lived, held, x[:1])
    first[0].result()
    os.kill(
        short_lived.run(os.getpid)[next(iter(short_lived.who_has(first)[first[0].key]))],
        signal.SIGKILL,
    )
    for found, part in zip(
        [first[0], *predict(short_lived, held, x)], [parts[0], *parts], strict=True
    ):
        np.testing.assert_allclose(found.result(), model.scorer.score(part[0]), atol=1e-6, rtol=0)
