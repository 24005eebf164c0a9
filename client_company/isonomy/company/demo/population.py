"""The demonstration's people, cut into what each party holds, and scored at the end.

One process knows both sides here, because the demonstration plays all parties. It writes features
and labels into the company's folder and attributes into the regulator's, and keeps the data in
memory to score the result on people who were not trained on. Attributes go nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score

from isonomy.common.base.errors import DataError
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.rehearsal.datasets import Dataset, attribute_names, lending, load
from isonomy.company.rehearsal.measures import violation

TEST_PART = 0.25


@dataclass(frozen=True)
class Score:
    """How decisions do on the test people."""

    accuracy: float
    violation: float
    rates: dict[str, float]  # selection rate by group


class Population:
    """The data set of one demonstration, with its split."""

    def __init__(self, data: Dataset, attribute: str, seed: int) -> None:
        self.data, self.attribute = data, attribute
        # A stream of its own: the generator's first draws, from the same seed, made the sexes.
        rng = np.random.default_rng([seed, 0x7E57])
        self._tested = rng.random(len(data.ids)) < TEST_PART  # (people,)

    @classmethod
    def of(cls, settings: DemoSettings) -> Population:
        """Generate or load the people that the settings ask for."""
        if settings.dataset == "lending":
            return cls(lending(settings.people, settings.seed), "sex", settings.seed)
        attribute = attribute_names(settings.dataset)[0]
        return cls(load(settings.dataset, settings.data_dir, attribute), attribute, settings.seed)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.data.labels(self.attribute)

    @property
    def training_ids(self) -> list[str]:
        """Ids of the people in the plan, in its order."""
        people = zip(self.data.ids, self._tested, strict=True)
        return [person for person, tested in people if not tested]

    def write_company(self, folder: Path) -> None:
        """Features and labels of everybody; nothing of the regulator's."""
        folder.mkdir(parents=True, exist_ok=True)
        whose = self.data.person_of_row
        tested = self._tested[whose]
        ids = np.array(self.data.ids)[whose]
        columns: dict[str, Any] = {"id": ids, "target": self.data.target}
        frame = pd.concat([pd.DataFrame(columns), self.data.features], axis=1)
        frame[~tested].to_csv(folder / "train.csv", index=False)
        frame[tested].drop(columns="target").to_csv(folder / "test.csv", index=False)
        kinds = {str(name): str(kind) for name, kind in self.data.features.dtypes.items()}
        (folder / "columns.json").write_text(json.dumps(kinds))

    def write_regulator(self, path: Path) -> None:
        """Id and attribute of everybody: the regulator's file."""
        values = {"id": self.data.ids, self.attribute: self.data.attributes[self.attribute]}
        path.touch(0o600)  # until it is enrolled; then the demonstration deletes it
        pd.DataFrame(values).to_csv(path, index=False)

    def score(self, decisions: Sequence[int], notion: str) -> Score:
        """Accuracy and violation of decisions about the test people, from the true attributes."""
        tested = self._tested[self.data.person_of_row]
        truth, codes = self.data.target[tested], self.data.codes(self.attribute)[tested]
        decided: NDArray[np.int64] = np.asarray(decisions, dtype=np.int64)
        if decided.shape != truth.shape:
            raise DataError(f"{len(decided)} decisions for {len(truth)} test rows")
        worst = violation(notion, truth, decided, codes, len(self.labels))
        rates = {
            label: float(decided[codes == code].mean()) for code, label in enumerate(self.labels)
        }
        return Score(float(accuracy_score(truth, decided)), worst, rates)


def read_company(layout: Layout) -> tuple[pd.DataFrame, NDArray[np.int64], list[str], pd.DataFrame]:
    """Read the company's files: training features, labels, ids; test features."""
    kinds = json.loads((layout.company_data / "columns.json").read_text())
    types = {**kinds, "id": str}
    train = pd.read_csv(layout.company_data / "train.csv", dtype=types, keep_default_na=True)
    test = pd.read_csv(layout.company_data / "test.csv", dtype=types, keep_default_na=True)
    ids = train.pop("id").tolist()
    target = train.pop("target").to_numpy(dtype=np.int64)
    return train, target, ids, test.drop(columns="id")
