"""More people than one open query carries: counts and audits in parts, each person in one."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from isonomy.common.crypto.params import BFV_8192_V1
from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, lending

PEOPLE, MOST = 1_000, 300


def test_counts_and_audits_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pays twice, and the parts together are about everybody."""
    data = lending(people=PEOPLE, seed=0)
    X, sex = data.features.select_dtypes("number"), {"sex": data.attributes["sex"]}
    fits, queries, spent = {}, {}, {}
    for most in (PEOPLE, MOST):
        # The limit of the product is four million people: too many for a test.
        monkeypatch.setitem(BFV_8192_V1.__dict__, "max_open_people", most)
        with LocalOracle.rehearse(data.ids, sex, epsilon=50.0, delta=1e-5) as oracle:
            model = FairClassifier(LogisticRegression(max_iter=5_000), oracle=oracle)
            fits[most] = model.fit(X, data.target).releases_
            queries[most], spent[most] = oracle.position[0], oracle.budget.spent_units
    parts = -(-PEOPLE // MOST)
    audits = len(fits[PEOPLE].audits)
    assert audits == len(fits[MOST].audits)
    assert queries[MOST] == queries[PEOPLE] + (1 + audits) * (parts - 1)
    assert len(fits[MOST].queries) == len(set(fits[MOST].queries)) == queries[MOST]
    # Each part has its own rounding of the same share.
    assert spent[MOST] == pytest.approx(spent[PEOPLE], rel=1e-6)
    assert fits[MOST].counts.sum() == pytest.approx(PEOPLE)
    ratio = fits[MOST].count_deviation / fits[PEOPLE].count_deviation
    np.testing.assert_allclose(ratio, np.sqrt(parts), rtol=1e-6)
    assert fits[MOST].units == pytest.approx(fits[PEOPLE].units, rel=1e-6)
