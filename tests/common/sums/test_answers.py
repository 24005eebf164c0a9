"""The file of a plan's signed answers: torn records, damage, and order."""

from pathlib import Path

import pytest

from isonomy.common.base.errors import VerificationError
from isonomy.common.sums.answers import AnswerFile

NAMES = [bytes([number]) * 16 for number in range(3)]
RECORDS = [(b"header %d" % number, b"answer" * number) for number in range(1, 4)]


def written(path: Path, records: int = 3) -> AnswerFile:
    answers = AnswerFile(path)
    for name, record in zip(NAMES[:records], RECORDS, strict=False):
        answers.add(name, *record)
        answers.sync()
    return answers


def test_answers_are_found_by_whoever_opens_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    assert AnswerFile(path).find(NAMES[0]) is None
    early = AnswerFile(path)
    for answers in (written(path), AnswerFile(path), early):
        assert [answers.find(name) for name in NAMES] == RECORDS
        assert list(answers) == RECORDS
        assert answers.find(b"?" * 16) is None
    assert path.stat().st_mode & 0o077 == 0


def test_the_newest_answer_of_a_query_counts(tmp_path: Path) -> None:
    answers = written(tmp_path / "answers")
    answers.add(NAMES[1], b"h", b"a")
    answers.sync()
    for each in (answers, AnswerFile(tmp_path / "answers")):
        assert each.find(NAMES[1]) == (b"h", b"a")
        assert each.find(NAMES[2]) == RECORDS[2]


def test_a_torn_record_is_put_aside_and_the_others_stay(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    written(whole)
    raw, before = whole.read_bytes(), written(tmp_path / "two", 2)._end
    for size in range(before + 1, len(raw)):
        path = tmp_path / f"torn-at-{size}"
        path.write_bytes(raw[:size])
        answers = AnswerFile(path)
        assert [answers.find(name) for name in NAMES] == [*RECORDS[:2], None]
        answers.add(NAMES[2], *RECORDS[2])
        answers.sync()
        assert path.read_bytes() == raw
        assert path.with_name(f"{path.name}.torn-1").read_bytes() == raw[before:size]


def test_damage_is_an_error_or_put_aside(tmp_path: Path) -> None:
    """A changed size can look like a torn record. Then what follows is kept beside the file."""
    written(tmp_path / "answers")
    raw = (tmp_path / "answers").read_bytes()
    errors = 0
    for place in range(len(raw)):
        path = tmp_path / f"changed-at-{place}"
        changed = bytearray(raw)
        changed[place] ^= 1
        path.write_bytes(changed)
        answers = AnswerFile(path)
        try:
            records = list(answers)
        except VerificationError:
            errors += 1
            continue
        assert records in (RECORDS[:1], RECORDS[:2], [])
        answers.add(b"?" * 16, b"", b"")
        answers.sync()
        aside = path.with_name(f"{path.name}.torn-1").read_bytes()
        assert bytes(changed).endswith(aside)
        assert len(aside) > 0
    assert errors > len(raw) / 2


def test_a_disk_that_is_full_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = written(tmp_path / "answers", 2)
    monkeypatch.setattr("os.pwrite", lambda fd, data, offset: len(data) // 2)
    with pytest.raises(OSError, match="short write"):
        answers.add(NAMES[2], *RECORDS[2])
    monkeypatch.undo()
    answers.add(NAMES[2], *RECORDS[2])
    answers.sync()
    assert list(AnswerFile(tmp_path / "answers")) == RECORDS
