"""Loaders: published shapes and rates, whose column is whose, refusals."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets

from isonomy.common.base.errors import ConfigError, DataError, TransportError
from isonomy.company.rehearsal.datasets import NAMES, Dataset, attribute_names, lending, load
from isonomy.company.rehearsal.datasets._sets import BANK_COLUMNS, CREDIT_COLUMNS

DATA = Path(os.environ.get("ISONOMY_DATA_DIR", Path(__file__).parents[4] / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no data in {DATA}; set ISONOMY_DATA_DIR to test on them"
)

# rows, people, features, positives, people per group: counted by hand from the files
PUBLISHED = {
    ("adult", "sex"): (45_222, 45_222, 12, 11_208, {"Female": 14_695, "Male": 30_527}),
    ("adult", "sex*race"): (45_222, 45_222, 11, 11_208, {"Male × White": 27_020}),
    ("bank", "age"): (45_211, 45_211, 14, 5_289, {"under 25 or over 60": 1_997}),
    ("credit", "sex"): (30_000, 30_000, 22, 6_636, {"Male": 11_888, "Female": 18_112}),
    ("compas", "race"): (5_278, 5_278, 7, 2_483, {"African-American": 3_175, "Caucasian": 2_103}),
    ("compas", "sex"): (6_172, 6_172, 6, 2_809, {"Female": 1_175}),
    ("parkinsons", "sex"): (5_875, 42, 18, 2_934, {"Male": 28, "Female": 14}),
    ("communities", "race"): (1_994, 1_994, 96, 583, {"over 6 % black": 970}),
    ("acs_income", "sex"): (39_133, 39_133, 9, 16_115, {"Male": 20_674, "Female": 18_459}),
    ("acs_income", "race"): (39_133, 39_133, 9, 16_115, {"American Indian": 344}),
    ("acs_income", "sex*race_code"): (39_133, 39_133, 8, 16_115, {"Male × RAC1P 1": 13_000}),
    ("compas", "all_races"): (6_172, 6_172, 7, 2_809, {"Hispanic": 509}),
}


@needs_data
@pytest.mark.parametrize(("name", "attribute"), PUBLISHED)
def test_shapes_and_rates_are_the_published_ones(name: str, attribute: str) -> None:
    rows, people, features, positives, groups = PUBLISHED[name, attribute]
    data = load(name, DATA, attribute)
    assert data.features.shape == (rows, features)
    assert len(data.ids) == people
    assert int(data.target.sum()) == positives
    first_rows = np.unique(data.person_of_row, return_index=True)[1]
    counts = np.bincount(data.codes(attribute)[first_rows], minlength=len(data.labels(attribute)))
    found = dict(zip(data.labels(attribute), counts.tolist(), strict=True))
    assert groups.items() <= found.items()
    assert sum(found.values()) == people


@needs_data
def test_what_names_the_group_or_the_outcome_is_no_feature() -> None:
    forbidden = {
        "adult": {"sex", "race", "fnlwgt", "income"},
        "bank": {"age", "duration", "y"},
        "credit": {"SEX", "ID", "default payment next month"},
        "compas": {"race", "sex", "decile_score", "is_recid", "score_text", "two_year_recid"},
        "parkinsons": {"sex", "subject#", "motor_UPDRS", "total_UPDRS"},
        "communities": {"racepctblack", "communityname", "ViolentCrimesPerPop"},
        "acs_income": {"SEX", "RAC1P", "PINCP"},
    }
    for name, columns in forbidden.items():
        data = load(name, DATA)  # no attribute named: all of them are the regulator's
        assert not columns & set(data.features.columns), name
        assert tuple(data.groups) == attribute_names(name)
        assert not data.features.isna().any().any()
        assert data.notes
        assert data.source


@needs_data
def test_repeated_people_are_people() -> None:
    data = load("parkinsons", DATA)
    assert data.people is not None
    assert np.bincount(data.people).min() >= 100
    assert len(data.attributes["sex"]) == len(data.ids) == 42


@needs_data
def test_repayment_status_is_categorical() -> None:
    data = load("credit", DATA)
    assert not pd.api.types.is_numeric_dtype(data.features["PAY_0"])
    assert set(data.features["EDUCATION"]) == {"1", "2", "3", "4"}
    assert set(data.features["MARRIAGE"]) == {"1", "2", "3"}


# --- Refusals ------------------------------------------------------------------------------------


def _bank_folder(tmp_path: Path, rows: int) -> Path:
    folder = tmp_path / "bank_marketing"
    folder.mkdir()
    line = ",".join("no" if name == "y" else "1" for name in BANK_COLUMNS)
    with gzip.open(folder / "bank-full.csv.gz", "wt") as file:
        file.write("\n".join([",".join(BANK_COLUMNS), *[line] * rows]))
    return tmp_path


def test_a_missing_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist.*bank-full\.csv\.gz.*OpenML 1461"):
        load("bank", tmp_path / "nowhere")


def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bank-full\.csv\.gz is missing.*45,211 rows.*OpenML 1461"):
        load("bank", tmp_path)


def test_another_table_under_the_same_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected 45,211 rows with 11\.70% positive, found 3 row"):
        load("bank", _bank_folder(tmp_path, rows=3))


def test_a_broken_file_is_a_data_error(tmp_path: Path) -> None:
    folder = _bank_folder(tmp_path, rows=3)
    (folder / "bank_marketing" / "bank-full.csv.gz").write_bytes(b"\x1f\x8b\x08 not gzip at all")
    with pytest.raises(DataError, match=r"bank-full\.csv\.gz cannot be read"):
        load("bank", folder)


@pytest.mark.parametrize("attribute", ["colour", "sex*sex", "sex*colour", ""])
def test_unknown_attributes_are_refused(attribute: str) -> None:
    with pytest.raises(DataError, match=r"lending has no attribute .*sex, origin"):
        load("lending", attribute=attribute)


def test_an_unknown_set_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match="adult, bank, credit"):
        load("nonesuch")


# --- Online --------------------------------------------------------------------------------------


def test_without_internet_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(**_: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", no_network)
    with pytest.raises(TransportError, match=r"adult_train\.csv\.gz.*--data-dir"):
        load("adult")


def test_compas_has_no_online_copy() -> None:
    with pytest.raises(DataError, match="propublica"):
        load("compas")


@needs_data
@pytest.mark.parametrize("name", ["bank", "credit"])
def test_online_columns_are_renamed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenML's column names and classes lead to the same data set as the folder's files."""
    if name == "bank":
        frame = pd.read_csv(DATA / "bank_marketing/bank-full.csv.gz")
        names = {column: f"V{i}" for i, column in enumerate(BANK_COLUMNS[:-1], start=1)}
        frame = frame.assign(y=np.where(frame["y"] == "yes", "2", "1"))
        frame = frame.rename(columns={**names, "y": "Class"})
    else:
        frame = pd.read_csv(DATA / "credit_default/credit_default.csv.gz").drop(columns="ID")
        names = {column: f"x{i}" for i, column in enumerate(CREDIT_COLUMNS[:-1], start=1)}
        frame = frame.rename(columns={**names, CREDIT_COLUMNS[-1]: "y"})
    bunch = type("Bunch", (), {"frame": frame})
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda **_: bunch)
    online, folder = load(name), load(name, DATA)
    pd.testing.assert_frame_equal(online.features, folder.features)
    assert np.array_equal(online.target, folder.target)
    assert online.attributes == folder.attributes


# --- The generator -------------------------------------------------------------------------------


def test_lending_is_reproducible_and_biased_as_documented() -> None:
    data, again = lending(8_000, seed=3), lending(8_000, seed=3)
    pd.testing.assert_frame_equal(data.features, again.features)
    assert np.array_equal(data.target, again.target)
    rate = {
        label: data.target[data.codes(name) == code].mean()
        for name in ("sex", "origin")
        for code, label in enumerate(data.labels(name))
    }
    assert 0.05 < rate["male"] - rate["female"] < 0.15
    assert 0.07 < rate["north"] - rate["elsewhere"] < 0.18
    assert rate["north"] > rate["south"] > rate["elsewhere"]
    assert {"sex", "origin"}.isdisjoint(data.features.columns)
    part_time = (data.features["part_time"] == "yes").to_numpy()
    female = data.codes("sex") == 0
    assert part_time[female].mean() > 2 * part_time[~female].mean()  # a proxy


def test_lending_needs_enough_people() -> None:
    with pytest.raises(DataError, match="at least 200"):
        lending(10)


# --- A user's file -------------------------------------------------------------------------------


@pytest.fixture
def people_frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "who": ["c", "a", "b", "a", "d"],
            "town": ["x", "y", None, "x", "y"],
            "pay": [1.0, 2.0, 3.0, 4.0, 5.0],
            "group": ["m", "f", "m", "f", None],
            "granted": ["yes", "no", "no", "yes", "yes"],
        }
    )


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_file_becomes_a_data_set(tmp_path: Path, people_frame: pd.DataFrame, suffix: str) -> None:
    path = tmp_path / f"mine.{suffix}"
    if suffix == "parquet":
        people_frame.to_parquet(path)
    else:
        people_frame.to_csv(path, index=False)
    data = load(str(path), attribute="group", target="granted", id_column="who")
    assert data.ids == ("a", "b", "c", "d")
    assert data.people is not None
    assert data.people.tolist() == [2, 0, 1, 0, 3]
    assert data.attributes["group"] == ["f", "m", "m", None]
    assert data.groups == {"group": ("f", "m", "not stated")}
    assert data.target.tolist() == [1, 0, 0, 1, 1]
    assert list(data.features.columns) == ["town", "pay"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "granted"}, "--target and --attribute"),
        ({"target": "granted", "attribute": "colour"}, "no column 'colour'"),
        ({"target": "pay", "attribute": "group"}, "two classes, it has 5"),
        ({"target": "town", "attribute": "group"}, "--positive"),
        ({"target": "granted", "attribute": "group", "positive": "maybe"}, "never 'maybe'"),
        ({"target": "granted", "attribute": "granted"}, "different columns"),
        ({"target": "granted", "attribute": "group", "id_column": "town"}, "without an id"),
        ({"target": "granted", "attribute": "town", "id_column": "who"}, "different values"),
    ],
)
def test_files_that_do_not_fit(
    tmp_path: Path, people_frame: pd.DataFrame, options: dict[str, str], message: str
) -> None:
    path = tmp_path / "mine.csv"
    people_frame.to_csv(path, index=False)
    with pytest.raises(DataError, match=message):
        load(str(path), **options)


def test_a_data_set_refuses_its_attribute_among_the_features() -> None:
    with pytest.raises(DataError, match="among the features"):
        Dataset(
            name="x",
            features=pd.DataFrame({"sex": [0, 1]}),
            target=np.array([0, 1]),
            attributes={"sex": ["f", "m"]},
            groups={"sex": ("f", "m")},
            ids=("1", "2"),
            people=None,
            notes="",
            source="",
        )


def test_names_are_those_of_the_command() -> None:
    assert NAMES == (
        "adult", "bank", "credit", "compas", "parkinsons", "communities", "acs_income", "lending",
    )  # fmt: skip
    assert issubclass(DataError, ConfigError)
