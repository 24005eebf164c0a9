"""Income sets from the United States census: Adult (1994) and ACSIncome (California, 2018)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from isonomy.company.rehearsal.datasets._dataset import Dataset, labelled, recoded
from isonomy.company.rehearsal.datasets._source import CsvFile, Source, openml

ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
ADULT_GROUPS = {
    "sex": ("Female", "Male"),
    "race": ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"),
}

ACS_COLUMNS = (
    "AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P", "PINCP",
)  # fmt: skip
ACS_RACES = {
    1: "White", 2: "Black", 3: "American Indian", 4: "American Indian", 5: "American Indian",
    6: "Asian", 7: "Pacific Islander", 8: "Other", 9: "Two or more",
}  # fmt: skip
ACS_NOMINAL = ("COW", "MAR", "RELP", "RAC1P")


def _adult_online() -> pd.DataFrame:
    return openml(1590).rename(columns={"class": "income"})


def _acs_online() -> pd.DataFrame:
    from fairlearn.datasets import fetch_acs_income

    frame: pd.DataFrame = fetch_acs_income(states=["CA"], as_frame=True).frame
    return frame.assign(PINCP=frame["PINCP"] > 50_000)


ADULT = Source(
    name="adult",
    files=(
        CsvFile("adult/adult_train.csv.gz", 32_561, ADULT_COLUMNS, 0.2408),
        CsvFile("adult/adult_test.csv.gz", 16_281, ADULT_COLUMNS, 0.2362),
    ),
    origin="UCI 'Adult', OpenML 1590, CC BY 4.0",
    positive=lambda frame: frame["income"].astype(str).str.startswith(">50K"),
    fetch=_adult_online,
)
ACS_INCOME = Source(
    name="acs_income",
    files=(CsvFile("acs_income/acsincome_ca2018_20pct.csv.gz", 39_133, ACS_COLUMNS, 0.4118),),
    origin="fairlearn.datasets.fetch_acs_income(states=['CA']), US Census public use microdata",
    positive=lambda frame: frame["PINCP"].astype(bool),
    fetch=_acs_online,
)


def adult(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Does a person earn more than 50,000 dollars? `sex`, `race`."""
    raw = ADULT.read(data_dir)
    frame = raw.dropna().reset_index(drop=True)
    return ADULT.dataset(
        frame,
        frame.drop(columns=["income", "fnlwgt", *hidden]),
        attributes={name: labelled(frame[name], ADULT_GROUPS[name]) for name in hidden},
        groups=ADULT_GROUPS,
        notes=f"{len(raw) - len(frame):,} rows with a missing value dropped; fnlwgt dropped: a "
        "survey weight says nothing about the person.",
    )


def acs_income(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Does a Californian earn more than 50,000 dollars? `sex`, `race`."""
    frame = ACS_INCOME.read(data_dir)
    codes = frame[["SEX", "RAC1P"]].astype(int)
    values = {
        "sex": recoded(codes["SEX"], {1: "Male", 2: "Female"}),
        "race": recoded(codes["RAC1P"], ACS_RACES),
    }
    groups = {"sex": ("Female", "Male"), "race": tuple(sorted(set(ACS_RACES.values())))}
    columns = {"sex": "SEX", "race": "RAC1P"}
    nominal = {name: frame[name].astype(int).astype(str) for name in (*ACS_NOMINAL, "SEX")}
    dropped = ["PINCP", *(columns[name] for name in hidden)]
    return ACS_INCOME.dataset(
        frame,
        frame.assign(**nominal).drop(columns=dropped),
        attributes={name: values[name] for name in hidden},
        groups=groups,
        notes="The three American Indian and Alaska Native codes of RAC1P (3, 4, 5: one of them "
        "has three people) are one group. OCCP and POBP stay numbers: neighbouring codes are "
        "neighbouring occupations and places, and 728 one-hot columns would be mostly empty.",
    )
