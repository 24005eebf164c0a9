"""Fits and rehearsals over Dask's and Ray's real workers and over processes: as in one process.

Ray is not among the packages for development. Install it (pip install ray) to run its cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from isonomy.company import lending
from isonomy.company.fair.inputs.base import fit_base
from isonomy.company.fair.inputs.people import People
from isonomy.company.rehearsal.results import Run, finite
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.simulate import simulate


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """A backend of joblib, with two workers where it needs them first."""
    name = str(request.param)
    with {"loky": nullcontext, "dask": two_of_dask, "ray": two_of_ray}[name]():
        yield name


@contextmanager
def two_of_dask() -> Iterator[None]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        yield


@contextmanager
def two_of_ray() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    register_ray()
    yield
    ray.shutdown()


BACKENDS = pytest.mark.parametrize("backend", ["loky", "dask", "ray"], indirect=True)


@pytest.mark.filterwarnings("ignore")  # of Dask and Ray, about ports and event loops
@BACKENDS
@pytest.mark.parametrize("base", [HistGradientBoostingClassifier(max_iter=5), LogisticRegression()])
def test_out_of_fold_fits_give_the_same_bits(backend: str, base: object) -> None:
    data = lending(people=600, seed=0)
    X = data.features.select_dtypes("number")
    people = People.of(np.arange(600), np.zeros(600, dtype=np.int64))
    arguments = (base, X, data.target, data.target, people, 5, 0)
    model, proba, _ = fit_base(*arguments)
    with joblib.parallel_config(backend, n_jobs=2):
        spread_model, spread_proba, _ = fit_base(*arguments)
    assert (spread_proba == proba).all()
    assert (spread_model.predict_proba(X) == model.predict_proba(X)).all()


@pytest.mark.filterwarnings("ignore")
def _figures(run: Run) -> dict[str, Any]:
    """Without what a clock shows; a figure that does not apply is None, not NaN."""
    return finite(vars(replace(run, seconds=0.0)))


@BACKENDS
def test_rehearsals_are_the_same_but_for_their_noise(backend: str) -> None:
    """`unconstrained` draws no noise, so its runs must agree to the last bit, in order."""
    settings = Settings(strategy="unconstrained", base="logistic", seeds=3, epsilons=(0.5, 1.0))
    data = lending(people=800, seed=0)
    seen: list[float] = []
    with joblib.parallel_config(backend, n_jobs=2):
        runs = simulate(data, settings, on_run=lambda epsilon, _: seen.append(epsilon))
    assert seen == [0.5, 1.0] * 3
    expected = simulate(data, settings)
    for one, other in zip(runs.results, expected.results, strict=True):
        assert [_figures(run) for run in one.runs] == [_figures(run) for run in other.runs]
