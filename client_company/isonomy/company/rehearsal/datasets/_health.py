"""Parkinsons telemonitoring: 5,875 recordings of 42 people. A row is not a person."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isonomy.company.rehearsal.datasets._dataset import Dataset, recoded
from isonomy.company.rehearsal.datasets._source import CsvFile, Source, openml, renamed_like

COLUMNS = (
    "subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", "Jitter(%)",
    "Jitter(Abs)", "Jitter:RAP", "Jitter:PPQ5", "Jitter:DDP", "Shimmer", "Shimmer(dB)",
    "Shimmer:APQ3", "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA", "NHR", "HNR", "RPDE", "DFA",
    "PPE",
)  # fmt: skip
MEDIAN_SCORE = 27.576

PARKINSONS = Source(
    name="parkinsons",
    files=(CsvFile("parkinsons/parkinsons_updrs.csv.gz", 5_875, COLUMNS, 0.4994),),
    origin="UCI 'Parkinsons Telemonitoring', OpenML 4531, CC BY 4.0",
    positive=lambda frame: frame["total_UPDRS"].astype(float) > MEDIAN_SCORE,
    fetch=lambda: renamed_like(openml(4531), COLUMNS),
)


def parkinsons(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Is a recording's UPDRS score above the median? `sex`, of the person recorded."""
    frame = PARKINSONS.read(data_dir)
    subjects, first, people = np.unique(
        frame["subject#"].to_numpy(), return_index=True, return_inverse=True
    )
    sex = recoded(frame["sex"].astype(int).iloc[first], {0: "Male", 1: "Female"})
    return Dataset(
        name="parkinsons",
        features=frame.drop(columns=["subject#", "sex", "motor_UPDRS", "total_UPDRS"]),
        target=PARKINSONS.positive(frame).to_numpy().astype(np.int64),
        attributes={"sex": sex},
        groups={"sex": ("Female", "Male")},
        ids=tuple(f"parkinsons-{int(subject):02d}" for subject in subjects),
        people=people.astype(np.int64),
        notes=f"{len(frame):,} rows of {len(subjects)} people: splits, privacy and noise floor go "
        "by people, so test sets hold about ten independent cases. subject# dropped: it names the "
        "person; motor_UPDRS dropped: it is part of the target.",
        source=PARKINSONS.origin,
    )
