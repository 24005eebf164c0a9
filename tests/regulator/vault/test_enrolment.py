"""Enrolling people: all of a file or nobody, and every bad line by its number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from regulator_kit import GAPS, Outcome, Regulator, fill_vault

from isonomy.regulator.vault.attributes import load_table
from isonomy.regulator.vault.vault import MISSING, UNKNOWN, Vault

GOOD = "id,sex\nann,female\nbo,male\ncy,\ndi,unknown\n"


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path, people=0, groups=GAPS)


def enroll(regulator: Regulator, content: str | bytes, *options: str) -> Outcome:
    path = regulator.folder / "people.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return regulator.run("enroll", path, "--attribute", "sex", *options)


def refused(regulator: Regulator, content: str | bytes, code: int, *words: str) -> None:
    before = regulator.config.vault_path.read_bytes()
    done = enroll(regulator, content)
    assert done.code == code, done.stderr
    for word in words:
        assert word in done.stderr.replace("\n", " ")
    assert regulator.config.vault_path.read_bytes() == before  # nobody, not even by half


def test_people_are_enrolled_and_gaps_are_groups_of_their_own(regulator: Regulator) -> None:
    done = enroll(regulator, GOOD, "--json", "--show-sizes")
    assert done.json["schema"] == "isonomy-regulator/enroll/v1"
    assert done.json["added"] == done.json["people"] == 4
    sizes = {"female": 1, "male": 1, "(missing)": 1, "(unknown)": 1}
    assert done.json["sizes"] == {"sex": sizes}
    table = regulator.vault.read()
    assert table.ids == ("ann", "bo", "cy", "di")
    assert table.codes["sex"].tolist() == [0, 1, MISSING, UNKNOWN]


def test_ids_that_a_spreadsheet_damaged_are_named_by_their_lines(regulator: Regulator) -> None:
    good = enroll(regulator, "id,sex\n001,female\n3e7,male\n#17b,male\n")
    assert "damaged" not in good.stderr  # ids may well look so
    lines = ["1,female", "1.0E+05,female", "#N/A,male", "NULL,male", "002,male", "4711,male"]
    done = enroll(regulator, "\n".join(["id,sex", *lines]), "--update", "--json")
    assert done.json["damaged"] == {"written": ["line 3", "line 4", "line 5"], "zeros": ["line 2"]}
    assert "spreadsheet, such as 1.0E+05, #N/A or NULL: 3 (line 3, line 4, line 5)" in done.stderr
    assert "but for leading zeros, and count as other people: 1 (line 2)" in done.stderr
    checked = regulator.run("check-ids")
    assert "has damaged, by their look (1.0E+05, #N/A, NULL): 3\n" in checked.stdout
    for text in (done.stderr, checked.stdout):
        assert "4711" not in text


@pytest.mark.parametrize(
    ("declared", "labels", "released"),
    [
        ("age=young,old", ("young", "old", "not stated"), [0, 2, 2, 1]),
        ("age=young,old,not stated", ("young", "old", "not stated"), [0, 2, 2, 1]),
        ("age=young,old or not stated", ("young", "old or not stated"), [0, 1, 1, 1]),
    ],
)
def test_people_without_a_value_have_a_group_by_default_or_a_merged_one(
    regulator: Regulator, declared: str, labels: tuple[str, ...], released: list[int]
) -> None:
    path = regulator.folder / "people.csv"
    path.write_text("id,age\nann,young\nbo,\ncy,not stated\ndi,o\n")
    options = ("--attribute", "age", "--groups", declared, "--map", "o=old")
    done = regulator.run("enroll", path, *options, "--json", "--show-sizes")
    assert done.json["sizes"] == {"age": {"young": 1, "old": 1, "(missing)": 1, "(unknown)": 1}}
    table = regulator.vault.read()
    assert table.codes["age"].tolist() == [0, MISSING, UNKNOWN, 1]
    assert table.groups == {"age": labels}
    plan, cohort = regulator.plan(table.ids, groups=table.groups)
    assert load_table(regulator.config, table, plan, cohort).codes("age").tolist() == released


def test_where_everybody_has_a_value_a_gap_is_refused(regulator: Regulator) -> None:
    path = regulator.folder / "people.csv"
    path.write_text("id,age\nann,young\nbo,\ncy,unknown\n")
    options = ("--attribute", "age", "--groups", "age=young,old", "--complete", "age")
    done = regulator.run("enroll", path, *options)
    assert done.code == 12
    assert "2 bad lines" in done.stderr
    assert "'old or not stated'" in done.stderr.replace("\n", " ")
    assert len(regulator.vault.read()) == 0
    assert regulator.run("enroll", path, *options, "--complete", "sex").code == 10
    assert enroll(regulator, GOOD).code == 0
    path.write_text("id,age\nann,young\n")  # the others would have no age
    assert regulator.run("enroll", path, *options, "--update").code == 12


def test_a_vault_with_gaps_and_no_group_for_them_answers_nobody(tmp_path: Path) -> None:
    """Of an older version. Whether a plan's own people have gaps makes no difference."""
    regulator = Regulator.create(tmp_path)
    table = regulator.vault.read()
    codes = table.codes["sex"].copy()
    codes[39] = MISSING
    regulator.vault.write(replace(table, codes={"sex": codes}))
    plan = regulator.plan_file(list(table.ids[:30]))
    done = regulator.run("approve", plan, "--yes")
    assert (done.code, "no group takes them" in done.stderr.replace("\n", " ")) == (10, True)
    regulator.change('"male"]', '"male", "not stated"]')
    assert enroll(regulator, "id,sex\nem,\n", "--update").code == 0
    regulator.approve(regulator.plan_file(list(table.ids[:30]), groups=GAPS))


def test_a_group_for_gaps_is_added_later_by_the_policy(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    assert enroll(regulator, "id,sex\nem,\n", "--update").code == 12
    regulator.change('"male"]', '"male", "not stated"]')
    assert regulator.run("approve", regulator.plan_file(groups=GAPS), "--yes").code == 10
    assert enroll(regulator, "id,sex\nem,\n", "--update").code == 0
    assert regulator.vault.read().groups == GAPS
    regulator.approve(regulator.plan_file(groups=GAPS))
    assert regulator.run("approve", regulator.plan_file(name="old"), "--yes").code == 51


def test_group_sizes_are_shown_on_request_only(regulator: Regulator) -> None:
    done = enroll(regulator, GOOD, "--json")
    assert "sizes" not in done.json
    assert "female" not in done.stdout + done.stderr
    shown = enroll(regulator, "id,sex\nem,female\n", "--update", "--show-sizes")
    assert "below the smallest group" in shown.stderr
    assert "female" not in shown.stdout


def test_a_byte_order_mark_spaces_and_quotes_do_no_harm(regulator: Regulator) -> None:
    done = enroll(regulator, b'\xef\xbb\xbfid, sex\r\n"a, b", female \r\n\r\nZo\xc3\xab,male\r\n')
    assert done.code == 0, done.stderr
    assert regulator.vault.read().ids == ("a, b", "Zoë")


def test_another_spelling_is_the_same_person(regulator: Regulator) -> None:
    """Else everybody could be enrolled twice, and have two budgets."""
    people = [f"Kunde-{number}" for number in range(20)]
    shouted = [person.upper() for person in people]
    assert enroll(regulator, "id,sex\n" + "".join(f"{one},female\n" for one in people)).code == 0
    again = "id,sex\n" + "".join(f"{one},female\n" for one in shouted)
    done = enroll(regulator, again, "--update", "--json")
    assert (done.json["added"], done.json["people"]) == (0, 20)
    both = enroll(regulator, "id,sex\nnew,male\nNEW,male\n", "--update")
    assert (both.code, "the same id as in line 2" in both.stderr) == (12, True)
    regulator.approve(regulator.plan_file(people, name="one", epsilon="2", groups=GAPS))
    again = regulator.plan_file(shouted, name="two", epsilon="2", groups=GAPS)
    twice = regulator.run("approve", again, "--yes")
    assert twice.code == 51  # their total is spent


class TestBadInput:
    def test_a_wrong_column_name(self, regulator: Regulator) -> None:
        refused(regulator, "person,sex\na,male\n", 12, "no column 'id'", "'person', 'sex'")

    def test_a_wrong_delimiter(self, regulator: Regulator) -> None:
        refused(regulator, "id;sex\na;male\n", 12, "--delimiter ';'")

    def test_a_column_twice(self, regulator: Regulator) -> None:
        refused(regulator, "id,sex,sex\na,male,male\n", 12, "twice")

    def test_an_empty_file(self, regulator: Regulator) -> None:
        refused(regulator, "", 12, "empty")
        refused(regulator, "id,sex\n", 12, "holds nobody")

    def test_mixed_types(self, regulator: Regulator) -> None:
        refused(regulator, "id,sex\na,male\nb,1\nc,2.5\n", 12, "2 bad lines", "line 3", "line 4")

    def test_an_undeclared_value_is_not_quoted(self, regulator: Regulator) -> None:
        done = enroll(regulator, "id,sex\na,secretvalue\n")
        assert done.code == 12
        assert "secretvalue" not in done.stderr

    def test_ragged_lines(self, regulator: Regulator) -> None:
        refused(regulator, "id,sex\na\nb,male,x\n", 12, "line 2: 1 cells", "line 3: 3 cells")

    def test_a_lost_quote(self, regulator: Regulator) -> None:
        refused(regulator, 'id,sex\na,male\n"b,male\nc,male\n', 12, "line")

    def test_not_utf8(self, regulator: Regulator) -> None:
        refused(regulator, b"id,sex\na,male\nZo\xeb,female\n", 12, "line 3 is not text in UTF-8")

    def test_utf16(self, regulator: Regulator) -> None:
        refused(regulator, "id,sex\na,male\n".encode("utf-16"), 12, "UTF-16")

    def test_an_id_twice_also_in_another_spelling(self, regulator: Regulator) -> None:
        twice = "id,sex\na,male\nb,male\na,male\n"
        refused(regulator, twice, 12, "line 4: the same id as in line 2")
        refused(regulator, "id,sex\nZo\u00eb,male\nZoe\u0308,male\n", 12, "line 3")

    def test_an_id_that_is_none(self, regulator: Regulator) -> None:
        refused(regulator, "id,sex\n,male\n ,male\n", 12, "2 bad lines", "line 2", "line 3")
        refused(regulator, "id,sex\nx,male\n x ,male\n", 12, "line 3: the same id as in line 2")

    def test_many_bad_lines_are_counted_and_some_shown(self, regulator: Regulator) -> None:
        rows = "".join(f"p{n},wrong\n" for n in range(500))
        refused(regulator, f"id,sex\n{rows}", 12, "500 bad lines", "and 490 more")

    def test_a_file_that_is_not_there(self, regulator: Regulator) -> None:
        done = regulator.run("enroll", regulator.folder / "none.csv", "--attribute", "sex")
        assert done.code == 10

    def test_groups_that_nobody_declared(self, regulator: Regulator) -> None:
        path = regulator.folder / "people.csv"
        path.write_text("id,race\na,x\n")
        done = regulator.run("enroll", path, "--attribute", "race")
        assert done.code == 10
        assert "--groups race=" in done.stderr.replace("\n", "")

    def test_groups_that_contradict_the_policy(self, regulator: Regulator) -> None:
        done = enroll(regulator, GOOD, "--groups", "sex=male,female")
        assert done.code == 10
        assert "must agree" in done.stderr

    def test_a_wrong_secret(self, regulator: Regulator, tmp_path: Path) -> None:
        wrong = tmp_path / "wrong"
        wrong.write_text("not the passphrase")
        wrong.chmod(0o600)
        done = enroll(regulator, GOOD, "--unlock-file", str(wrong))
        assert done.code == 70
        assert len(regulator.vault.read()) == 0

    def test_an_open_unlock_file(self, regulator: Regulator) -> None:
        assert regulator.config.unlock_file is not None
        regulator.config.unlock_file.chmod(0o644)
        done = enroll(regulator, GOOD)
        assert done.code == 10
        assert "chmod 600" in done.stderr


def one_bad_line(count: int) -> str:
    lines = [f"person-{n},{'female' if n % 3 else 'male'}\n" for n in range(count)]
    lines[count // 2] = "person-x,femal\n"
    return "id,sex\n" + "".join(lines)


def test_one_bad_line_among_many(regulator: Regulator) -> None:
    refused(regulator, one_bad_line(20_000), 12, "1 bad line;", "line 10002")


@pytest.mark.slow
def test_one_bad_line_among_a_million(regulator: Regulator) -> None:
    text = one_bad_line(1_000_000)
    refused(regulator, text, 12, "1 bad line;", "line 500002")
    assert enroll(regulator, text.replace("femal\n", "female\n")).code == 0
    assert len(regulator.vault.read()) == 1_000_000


class TestUpdates:
    def test_people_are_added(self, regulator: Regulator) -> None:
        assert enroll(regulator, GOOD).code == 0
        assert enroll(regulator, GOOD).code == 72  # not without --update
        done = enroll(regulator, "id,sex\nann,female\nem,male\n", "--update", "--json")
        assert (done.json["added"], done.json["unchanged"], done.json["people"]) == (1, 1, 5)
        assert regulator.vault.read().codes["sex"].tolist() == [0, 1, MISSING, UNKNOWN, 1]

    def test_another_value_needs_replace(self, regulator: Regulator) -> None:
        assert enroll(regulator, GOOD).code == 0
        before = regulator.config.vault_path.read_bytes()
        done = enroll(regulator, "id,sex\nem,male\nann,male\n", "--update")
        assert done.code == 72
        assert "line 3" in done.stderr
        assert regulator.config.vault_path.read_bytes() == before
        done = enroll(regulator, "id,sex\nem,male\nann,male\n", "--replace", "--json")
        assert (done.json["added"], done.json["replaced"]) == (1, 1)
        assert regulator.vault.read().codes["sex"].tolist() == [1, 1, MISSING, UNKNOWN, 1]

    def test_another_cohort_and_a_further_attribute(self, regulator: Regulator) -> None:
        assert enroll(regulator, GOOD, "--cohort", "north").code == 0
        assert enroll(regulator, "id,sex\nem,male\n", "--cohort", "south").code == 0
        assert enroll(regulator, "id,sex\nann,female\n", "--cohort", "west").code == 72
        path = regulator.folder / "age.csv"
        path.write_text("id,age\nbo,old\nem,young\n")
        options = ("--attribute", "age", "--groups", "age=young,old", "--update")
        done = regulator.run("enroll", path, *options)
        assert done.code == 0, done.stderr
        table = regulator.vault.read()
        assert table.cohort_names[:2] == ("north", "south")
        assert table.in_cohort("south").tolist() == [False] * 4 + [True]
        assert table.codes["age"].tolist() == [MISSING, 1, MISSING, MISSING, 0]
        assert table.codes["sex"].tolist() == [0, 1, MISSING, UNKNOWN, 1]

    def test_two_writers_do_not_meet(self, regulator: Regulator) -> None:
        with regulator.vault.locked():
            done = enroll(regulator, GOOD)
        assert done.code == 10
        assert "changing the vault" in done.stderr


class TestParquet:
    def write(self, regulator: Regulator, **columns: object) -> Outcome:
        path = regulator.folder / "people.parquet"
        pq.write_table(pa.table(columns), path)
        return regulator.run("enroll", path, "--attribute", "sex")

    def test_text_dictionaries_and_whole_numbers(self, regulator: Regulator) -> None:
        sex = pa.array(["female", None, "male"]).dictionary_encode()
        done = self.write(regulator, id=pa.array([7, 8, 9]), sex=sex, other=pa.array([1.5] * 3))
        assert done.code == 0, done.stderr
        assert regulator.vault.read().ids == ("7", "8", "9")
        assert regulator.vault.read().codes["sex"].tolist() == [0, MISSING, 1]

    def test_other_types_are_refused(self, regulator: Regulator) -> None:
        sex = pa.array(["female"])
        done = self.write(regulator, id=pa.array([1.0]), sex=sex)
        assert done.code == 12
        assert "double" in done.stderr
        assert self.write(regulator, id=pa.array(["a"]), sex=pa.array([[1]])).code == 12
        assert self.write(regulator, person=pa.array(["a"]), sex=sex).code == 12

    def test_rows_are_numbered(self, regulator: Regulator) -> None:
        done = self.write(
            regulator, id=pa.array(["a", None, "c"]), sex=pa.array(["male", "male", "wrong"])
        )
        assert done.code == 12
        assert "row 2" in done.stderr
        assert "row 3" in done.stderr

    def test_a_cut_file(self, regulator: Regulator) -> None:
        path = regulator.folder / "people.parquet"
        pq.write_table(pa.table({"id": ["a"], "sex": ["male"]}), path)
        path.write_bytes(path.read_bytes()[:-20])
        assert regulator.run("enroll", path, "--attribute", "sex").code == 12


def test_the_vault_forgets_what_it_is_told_to(regulator: Regulator) -> None:
    fill_vault(regulator.config, {"a": "female", "b": "male"}, GAPS, "north")
    fill_vault(regulator.config, {"c": "male", "d": None}, GAPS, "south")
    table = regulator.vault.read()
    left = table.without(table.in_cohort("north"))
    assert (left.ids, left.cohort_names) == (("c", "d"), ("south",))
    assert left.codes["sex"].tolist() == [1, MISSING]
    nobody = left.without(np.array([True, True]))
    assert (len(nobody), nobody.cohort_names) == (0, ())
    vault: Vault = regulator.vault
    vault.write(nobody)
    assert len(regulator.vault.read()) == 0
