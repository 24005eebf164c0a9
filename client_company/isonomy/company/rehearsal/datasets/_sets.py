"""The benchmark sets, one entry each: where it is, what must be true of it, how it is prepared.

A preparation is a function of the raw table and the regulator's attributes. It returns the rows
that stay, the features, every attribute's value by row, and what a reader should know about it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from isonomy.company.rehearsal.datasets._source import (
    CsvFile,
    Prepared,
    Source,
    openml,
    renamed_like,
)

SEXES = ("Female", "Male")

# --- Income: the United States census of 1994, and California in 2018 ----------------------------

ADULT_RACES = ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White")
ACS_RACES = {
    1: "White", 2: "Black", 3: "American Indian", 4: "American Indian", 5: "American Indian",
    6: "Asian", 7: "Pacific Islander", 8: "Other", 9: "Two or more",
}  # fmt: skip
ACS_COLUMNS = {"sex": "SEX", "race": "RAC1P", "race_code": "RAC1P"}


def _adult(raw: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Does a person earn more than 50,000 dollars? `sex`, `race`."""
    frame = raw.dropna()
    return Prepared(
        frame,
        frame.drop(columns=["income", "fnlwgt", *hidden]),
        frame,
        f"{len(raw) - len(frame):,} rows with a missing value dropped; fnlwgt dropped: a "
        "survey weight says nothing about the person.",
    )


def _acs_online() -> pd.DataFrame:
    from fairlearn.datasets import fetch_acs_income

    frame: pd.DataFrame = fetch_acs_income(states=["CA"], as_frame=True).frame
    return frame.assign(PINCP=frame["PINCP"] > 50_000)


def _acs_income(frame: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Does a Californian earn more than 50,000 dollars? `sex`, `race`, `race_code`."""
    codes = frame[["COW", "MAR", "RELP", "RAC1P", "SEX"]].astype(int)
    attributes = {
        "sex": codes["SEX"].map({1: "Male", 2: "Female"}),
        "race": codes["RAC1P"].map(ACS_RACES),
        "race_code": codes["RAC1P"].map("RAC1P {}".format),
    }
    dropped = {"PINCP", *map(ACS_COLUMNS.get, hidden)}
    return Prepared(
        frame,
        frame.assign(**codes.astype(str)).drop(columns=list(dropped)),
        attributes,
        "`race_code` has all nine codes of RAC1P, of which one has three people. In `race` the "
        "three American Indian and Alaska Native codes (3, 4, 5) are one group. OCCP and POBP stay "
        "numbers: neighbouring codes are neighbouring occupations and places, and 728 one-hot "
        "columns would be mostly empty.",
    )


# --- Banks: telephone marketing in Portugal, and credit-card default in Taiwan -------------------

BANK_AGES = ("25 to 60", "under 25 or over 60")
BANK_COLUMNS = (  # in OpenML's order, where they are called V1 … V16 and Class
    "age", "job", "marital", "education", "default", "balance", "housing", "loan", "contact",
    "day", "month", "duration", "campaign", "pdays", "previous", "poutcome", "y",
)  # fmt: skip
CREDIT_TARGET = "default payment next month"
CREDIT_PAY = tuple(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6))
CREDIT_COLUMNS = (  # in OpenML's order, where they are called x1 … x23 and y
    "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *CREDIT_PAY,
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
    CREDIT_TARGET,
)  # fmt: skip


def _bank_online() -> pd.DataFrame:
    frame = openml(1461).set_axis(list(BANK_COLUMNS), axis=1)
    return frame.assign(y=np.where(frame["y"].astype(str) == "2", "yes", "no"))


def _bank(frame: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Does a customer take the deposit? `age`: under 25 or over 60 against the rest."""
    edge = (frame["age"] < 25) | (frame["age"] > 60)
    return Prepared(
        frame,
        frame.drop(columns=["y", "duration", "age"]),
        {"age": pd.Series(np.where(edge, *reversed(BANK_AGES)))},
        "age dropped: it defines the group; duration dropped: it is known only after the "
        "call, when the outcome is known too.",
    )


def _credit_online() -> pd.DataFrame:
    return openml(42477).set_axis(list(CREDIT_COLUMNS), axis=1).astype(float).astype(int)


def _credit(frame: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Does a card holder default next month? `sex`."""
    features = frame.drop(columns=[CREDIT_TARGET, "SEX"]).drop(columns="ID", errors="ignore")
    tidy = features.replace({"EDUCATION": {0: 4, 5: 4, 6: 4}, "MARRIAGE": {0: 3}})
    nominal = dict.fromkeys(("EDUCATION", "MARRIAGE", *CREDIT_PAY), str)
    return Prepared(
        frame,
        tidy.astype(nominal),
        {"sex": frame["SEX"].map({1: "Male", 2: "Female"})},
        "ID dropped. EDUCATION 0, 5, 6 (undocumented) count as 4 (other), MARRIAGE 0 as 3 "
        "(other). Repayment status PAY_* is categorical: −2, −1 and 0 are no amounts of delay.",
    )


# --- Crime: recidivism in Broward County, and crime rates of communities -------------------------

COMPAS_RACES = ("African-American", "Caucasian")
COMPAS_ALL_RACES = (*COMPAS_RACES, "Asian", "Hispanic", "Native American", "Other")
COMPAS_FEATURES = (
    "age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count", "c_charge_degree",
)  # fmt: skip
CRIME_TARGET = "ViolentCrimesPerPop"
CRIME_NAMES = ("state", "county", "community", "communityname", "fold")
CRIME_SHARES = ("racepctblack", "racePctWhite", "racePctAsian", "racePctHisp")
CRIME_COLUMNS = ("population", "medIncome", "PctPopUnderPov", *CRIME_SHARES, CRIME_TARGET)
CRIME_RACES = ("over 6 % black", "up to 6 % black")


def _compas(raw: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Is a defendant charged again within two years? `race` (two of six), `all_races`, `sex`."""
    near = raw["days_b_screening_arrest"].between(-30, 30)
    scored = raw["score_text"].notna() & (raw["score_text"] != "N/A")
    frame = raw[near & scored & (raw["is_recid"] != -1) & (raw["c_charge_degree"] != "O")]
    notes = f"ProPublica's filter leaves {len(frame):,} of {len(raw):,} rows"
    if "race" in hidden:
        frame = frame[frame["race"].isin(COMPAS_RACES)]
        notes += f", of which {len(frame):,} in the two groups compared"
    return Prepared(
        frame,
        frame[[*COMPAS_FEATURES, *({"sex"} - set(hidden))]],
        frame.assign(all_races=frame["race"]),
        notes + ". Features are what is known at screening: age, sex, record and degree of the "
        "charge. Scores, dates, jail times, later charges (they hold the outcome) and race are "
        "left out.",
    )


def _communities(frame: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Is a community among the violent 30 %? `race`: are more than 6 % of its people black?"""
    sparse = frame.columns[frame.isna().mean() > 0.5]
    dropped = {*CRIME_NAMES, *CRIME_SHARES, *sparse} & set(frame.columns)
    inputs = frame.drop(columns=[*dropped, CRIME_TARGET]).astype(float)
    few = frame["racepctblack"].astype(float) <= 0.06
    return Prepared(
        frame,
        inputs.fillna(inputs.median()),
        {"race": pd.Series(np.where(few, *reversed(CRIME_RACES)))},
        f"{len(dropped)} columns dropped: names of places, the four shares of races (one "
        "defines the group), and those more than half empty. One value filled with its median. A "
        "row is a community, not a person.",
    )


# --- Health: 5,875 recordings of 42 people. A row is not a person --------------------------------

VOICE_COLUMNS = (
    "subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", "Jitter(%)",
    "Jitter(Abs)", "Jitter:RAP", "Jitter:PPQ5", "Jitter:DDP", "Shimmer", "Shimmer(dB)",
    "Shimmer:APQ3", "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA", "NHR", "HNR", "RPDE", "DFA",
    "PPE",
)  # fmt: skip
MEDIAN_SCORE = 27.576


def _parkinsons(frame: pd.DataFrame, hidden: tuple[str, ...]) -> Prepared:
    """Is a recording's UPDRS score above the median? `sex`, of the person recorded."""
    subjects = frame["subject#"].astype(int)
    return Prepared(
        frame,
        frame.drop(columns=["subject#", "sex", "motor_UPDRS", "total_UPDRS"]),
        {"sex": frame["sex"].astype(int).map({0: "Male", 1: "Female"})},
        f"{len(frame):,} rows of {subjects.nunique()} people: splits, privacy and noise floor go "
        "by people, so test sets hold about ten independent cases. subject# dropped: it names the "
        "person; motor_UPDRS dropped: it is part of the target.",
        ids=subjects.map("parkinsons-{:02d}".format),
    )


SOURCES = {
    "adult": Source(
        files=(
            CsvFile("adult/adult_train.csv.gz", 32_561, 15, 0.2408),
            CsvFile("adult/adult_test.csv.gz", 16_281, 15, 0.2362),
        ),
        origin="UCI 'Adult', OpenML 1590, CC BY 4.0",
        groups={"sex": SEXES, "race": ADULT_RACES},
        positive=lambda frame: frame["income"].astype(str).str.startswith(">50K"),
        prepare=_adult,
        fetch=lambda: openml(1590).rename(columns={"class": "income"}),
    ),
    "bank": Source(
        files=(CsvFile("bank_marketing/bank-full.csv.gz", 45_211, 17, 0.1170),),
        origin="UCI 'Bank Marketing' (bank-full), OpenML 1461, CC BY 4.0",
        groups={"age": BANK_AGES},
        positive=lambda frame: frame["y"] == "yes",
        prepare=_bank,
        fetch=_bank_online,
    ),
    "credit": Source(
        files=(CsvFile("credit_default/credit_default.csv.gz", 30_000, 24, 0.2212),),
        origin="UCI 'Default of Credit Card Clients', OpenML 42477, CC BY 4.0",
        groups={"sex": SEXES},
        positive=lambda frame: frame[CREDIT_TARGET] == 1,
        prepare=_credit,
        fetch=_credit_online,
    ),
    "compas": Source(
        files=(CsvFile("compas/compas-scores-two-years.csv.gz", 7_214, 12, 0.4507),),
        origin="github.com/propublica/compas-analysis, compas-scores-two-years.csv",
        groups={"race": COMPAS_RACES, "sex": SEXES, "all_races": COMPAS_ALL_RACES},
        positive=lambda frame: frame["two_year_recid"] == 1,
        prepare=_compas,
        fetch=None,
    ),
    "parkinsons": Source(
        files=(CsvFile("parkinsons/parkinsons_updrs.csv.gz", 5_875, 22, 0.4994),),
        origin="UCI 'Parkinsons Telemonitoring', OpenML 4531, CC BY 4.0",
        groups={"sex": SEXES},
        positive=lambda frame: frame["total_UPDRS"].astype(float) > MEDIAN_SCORE,
        prepare=_parkinsons,
        fetch=lambda: renamed_like(openml(4531), VOICE_COLUMNS),
        score="total_UPDRS",
    ),
    "communities": Source(
        files=(CsvFile("communities_crime/communities.csv.gz", 1_994, 100, 0.2924),),
        origin="UCI 'Communities and Crime', OpenML 315, CC BY 4.0",
        groups={"race": CRIME_RACES},
        positive=lambda frame: frame[CRIME_TARGET].astype(float) > 0.28,
        prepare=_communities,
        fetch=lambda: renamed_like(openml(315), CRIME_COLUMNS),
        score=CRIME_TARGET,
    ),
    "acs_income": Source(
        files=(CsvFile("acs_income/acsincome_ca2018_20pct.csv.gz", 39_133, 11, 0.4118),),
        origin="fairlearn.datasets.fetch_acs_income(states=['CA']), US Census public use microdata",
        groups={
            "sex": SEXES,
            "race": tuple(sorted(set(ACS_RACES.values()))),
            "race_code": tuple(f"RAC1P {code}" for code in ACS_RACES),
        },
        positive=lambda frame: frame["PINCP"].astype(bool),
        prepare=_acs_income,
        fetch=_acs_online,
    ),
}
