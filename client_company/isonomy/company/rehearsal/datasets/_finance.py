"""Bank sets: telephone marketing in Portugal, and credit-card default in Taiwan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from isonomy.company.rehearsal.datasets._dataset import Dataset, recoded
from isonomy.company.rehearsal.datasets._source import CsvFile, Source, openml

BANK_COLUMNS = (
    "age", "job", "marital", "education", "default", "balance", "housing", "loan", "contact",
    "day", "month", "duration", "campaign", "pdays", "previous", "poutcome", "y",
)  # fmt: skip
BANK_AGES = ("25 to 60", "under 25 or over 60")

CREDIT_TARGET = "default payment next month"
CREDIT_PAY = tuple(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6))
CREDIT_COLUMNS = (
    "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *CREDIT_PAY,
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
    CREDIT_TARGET,
)  # fmt: skip


def _bank_online() -> pd.DataFrame:
    """OpenML names the columns V1…V16 in the original order, and the classes 1 and 2."""
    frame = openml(1461)
    names = {f"V{index}": name for index, name in enumerate(BANK_COLUMNS[:-1], start=1)}
    frame = frame.rename(columns={**names, "Class": "y"})
    return frame.assign(y=np.where(frame["y"].astype(str) == "2", "yes", "no"))


def _credit_online() -> pd.DataFrame:
    """OpenML names the columns x1…x23 in the original order, and the target y."""
    names = {f"x{index}": name for index, name in enumerate(CREDIT_COLUMNS[:-1], start=1)}
    frame = openml(42477).rename(columns={**names, "y": CREDIT_TARGET})
    return frame.astype(float).astype(int)


BANK = Source(
    name="bank",
    files=(CsvFile("bank_marketing/bank-full.csv.gz", 45_211, BANK_COLUMNS, 0.1170),),
    origin="UCI 'Bank Marketing' (bank-full), OpenML 1461, CC BY 4.0",
    positive=lambda frame: frame["y"] == "yes",
    fetch=_bank_online,
)
CREDIT = Source(
    name="credit",
    files=(CsvFile("credit_default/credit_default.csv.gz", 30_000, CREDIT_COLUMNS, 0.2212),),
    origin="UCI 'Default of Credit Card Clients', OpenML 42477, CC BY 4.0",
    positive=lambda frame: frame[CREDIT_TARGET] == 1,
    fetch=_credit_online,
)


def bank(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Does a customer take the deposit? `age`: under 25 or over 60 against the rest."""
    frame = BANK.read(data_dir)
    edge = (frame["age"] < 25) | (frame["age"] > 60)
    return BANK.dataset(
        frame,
        frame.drop(columns=["y", "duration", "age"]),
        attributes={"age": [BANK_AGES[int(far)] for far in edge]},
        groups={"age": BANK_AGES},
        notes="age dropped: it defines the group; duration dropped: it is known only after the "
        "call, when the outcome is known too.",
    )


def credit(data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
    """Does a card holder default next month? `sex`."""
    frame = CREDIT.read(data_dir)
    tidy = frame.assign(
        EDUCATION=frame["EDUCATION"].replace({0: 4, 5: 4, 6: 4}),
        MARRIAGE=frame["MARRIAGE"].replace({0: 3}),
    )
    nominal = ("EDUCATION", "MARRIAGE", *CREDIT_PAY)
    features = tidy.assign(**{name: tidy[name].astype(str) for name in nominal})
    return CREDIT.dataset(
        frame,
        features.drop(columns=[CREDIT_TARGET, "SEX", *(["ID"] if "ID" in frame else [])]),
        attributes={"sex": recoded(frame["SEX"], {1: "Male", 2: "Female"})},
        groups={"sex": ("Female", "Male")},
        notes="ID dropped. EDUCATION 0, 5, 6 (undocumented) count as 4 (other), MARRIAGE 0 as 3 "
        "(other). Repayment status PAY_* is categorical: −2, −1 and 0 are no amounts of delay.",
    )
