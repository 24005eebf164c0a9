"""Fits, rehearsals and products over Dask's and Ray's workers and over processes: as in one.

Ray is not among the packages for development. Install it (pip install ray) to run its cases.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from isonomy.common.crypto.blinding import Seeds
from isonomy.common.crypto.he import QueryKey, SumBuilder
from isonomy.common.privacy.queries import Query, shapes_of
from isonomy.common.privacy.row_sources import IntegerRows, RowSource, StreamedRows
from isonomy.common.sums import spread_products
from isonomy.common.sums.spread_products import SpreadBuilder, sum_builder
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


@pytest.mark.filterwarnings("ignore")  # of Dask and Ray, about ports and event loops
@BACKENDS
@pytest.mark.parametrize("shape", ["groups", "weighted", "streamed"])
def test_products_give_the_same_ciphertexts(
    backend: str, shape: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spread_products, "LEAST_PRODUCTS", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    people, columns, rng = 3_000, 40, np.random.default_rng(0)
    groups = shape != "weighted"
    weights = () if groups else (1.0, 0.0, -1.0)
    terms = ("", bytes(32), "", "blind", "groups" if groups else "weighted", ("a",), columns)
    shapes = shapes_of(Query(*terms, "gaussian", 1 << 20, 1.0, weights), (3,), people)
    assert shapes.layout.parts > 2
    assert shapes.layout.blocks > 1
    rows: IntegerRows = rng.integers(-99, 99, (people, columns) if groups else (2, people, columns))
    if shape == "streamed":
        values = rng.normal(size=(people, columns))
        source = RowSource(values.shape, 700, lambda part: values[part])
        rows = StreamedRows(source, 9.0, 1 << 20, 2)
    key, seeds = QueryKey(shapes.layout.params), Seeds.fresh()
    zero, members = key.encrypt_zero(), rng.random((2, people)) < 0.5
    blocks = [shapes.layout.block_slice(index) for index in range(shapes.layout.blocks)]
    encrypted = [[key.encrypt_column(each[block]) for each in members] for block in blocks]

    def answers(kind: type) -> list[bytes]:
        builder = sum_builder(shapes, zero)
        assert type(builder) is kind
        for index, block_columns in enumerate(encrypted):
            builder.add_block(index, rows, block_columns)
        return list(builder.finish(seeds, blind=True))

    expected = answers(SumBuilder)
    assert len(expected) == shapes.parts
    with joblib.parallel_config(backend, n_jobs=2):
        assert answers(SpreadBuilder) == expected
    assert not list(tmp_path.glob("isonomy-*"))  # nothing of the rows is left on the disk
    with joblib.parallel_config("threading", n_jobs=2):
        assert answers(SumBuilder) == expected  # threads gain nothing


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
