"""Crime sets: recidivism scores in Broward County (COMPAS) and crime rates of communities."""

from __future__ import annotations

from pathlib import Path

from isonomy.company.rehearsal.datasets._dataset import Dataset, labelled
from isonomy.company.rehearsal.datasets._source import CsvFile, Source, openml, renamed_like

COMPAS_FEATURES = (
    "age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count", "c_charge_degree",
)  # fmt: skip
COMPAS_COLUMNS = (
    *COMPAS_FEATURES, "sex", "race", "days_b_screening_arrest", "is_recid", "score_text",
    "two_year_recid",
)  # fmt: skip
COMPAS_RACES = ("African-American", "Caucasian")

CRIME_TARGET = "ViolentCrimesPerPop"
CRIME_NAMES = ("state", "county", "community", "communityname", "fold")
CRIME_RACE = ("racepctblack", "racePctWhite", "racePctAsian", "racePctHisp")
CRIME_COLUMNS = ("population", "medIncome", "PctPopUnderPov", *CRIME_RACE, CRIME_TARGET)
CRIME_RACES = ("over 6 % black", "up to 6 % black")

COMPAS = Source(
    name="compas",
    files=(CsvFile("compas/compas-scores-two-years.csv.gz", 7_214, COMPAS_COLUMNS, 0.4507),),
    origin="github.com/propublica/compas-analysis, compas-scores-two-years.csv",
    positive=lambda frame: frame["two_year_recid"] == 1,
    fetch=None,
)
COMMUNITIES = Source(
    name="communities",
    files=(CsvFile("communities_crime/communities.csv.gz", 1_994, CRIME_COLUMNS, 0.2924),),
    origin="UCI 'Communities and Crime', OpenML 315, CC BY 4.0",
    positive=lambda frame: frame[CRIME_TARGET].astype(float) > 0.28,
    fetch=lambda: renamed_like(openml(315), CRIME_COLUMNS),
)


def compas(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Is a defendant charged again within two years? `race`, `sex`."""
    raw = COMPAS.read(data_dir)
    near = raw["days_b_screening_arrest"].between(-30, 30)
    scored = raw["score_text"].notna() & (raw["score_text"] != "N/A")
    frame = raw[near & scored & (raw["is_recid"] != -1) & (raw["c_charge_degree"] != "O")]
    filtered = len(frame)
    if "race" in hidden:
        frame = frame[frame["race"].isin(COMPAS_RACES)]
    groups = {"race": COMPAS_RACES, "sex": ("Female", "Male")}
    features = [*COMPAS_FEATURES, *(name for name in ("sex",) if name not in hidden)]
    return COMPAS.dataset(
        frame,
        frame[features],
        attributes={name: labelled(frame[name], groups[name]) for name in hidden},
        groups=groups,
        notes=f"ProPublica's filter leaves {filtered:,} of {len(raw):,} rows"
        + (f", of which {len(frame):,} in the two groups compared. " if "race" in hidden else ". ")
        + "Features are what is known at screening: age, sex, record and degree of the charge. "
        "Scores, dates, jail times, later charges (they hold the outcome) and race are left out.",
    )


def communities(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Is a community among the violent 30 %? `race`: are more than 6 % of its people black?"""
    frame = COMMUNITIES.read(data_dir)
    share = frame["racepctblack"].astype(float)
    sparse = [name for name in frame if frame[name].isna().mean() > 0.5]
    dropped = {*CRIME_NAMES, *CRIME_RACE, *sparse} & set(frame.columns)
    inputs = frame.drop(columns=[*dropped, CRIME_TARGET]).astype(float)
    return COMMUNITIES.dataset(
        frame,
        inputs.fillna(inputs.median()),
        attributes={"race": [CRIME_RACES[int(value <= 0.06)] for value in share]},
        groups={"race": CRIME_RACES},
        notes=f"{len(dropped)} columns dropped: names of places, the four shares of races (one "
        "defines the group), and those more than half empty. One value filled with its median. A "
        "row is a community, not a person.",
    )
