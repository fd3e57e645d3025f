"""Files of records: appended whole, merged, and never taken for what they are not."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from vdla.compiler.choose.records import Key, Record, Records, append, merge
from vdla.isa.errors import VdlaError

KEY = Key("accel", "de45ae47 {}", "products", '{"rows":1}')


def record(cost: float | None, rows: int = 1, key: Key = KEY, **more) -> Record:
    return Record(key, {"rows": rows}, cost, "" if cost else "it crashed", **more)


def test_a_file_gives_back_what_was_appended(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    told = {"who": "me@here", "when": "2026-01-01T00:00:00+00:00", "versions": {"vdla": "1"}}
    first = record(5.0, tuner="xgb", seed=3, seconds=0.25, **told)
    append(file, [first])
    append(file, [record(None), record(4.0, 2, preferred=True)])
    found = Records.load(file)
    assert found.trials == [first, record(None), record(4.0, 2, preferred=True)]
    assert file.read_text().count("\n") == 3


def test_old_names_of_knobs_are_read() -> None:
    old = {"places": 7, "parts": 2, "image_parts": 8, "addition": "joined", "order": "joined"}
    line = json.dumps(KEY._asdict() | {"knobs": old, "cost": 1})
    assert Record.read(line).knobs == {
        "positions": 7, "split_k": 2, "image_chunks": 8, "addition": "fused", "order": "joined",
    }  # fmt: skip


def test_the_best_is_the_cheapest_or_the_preferred_one() -> None:
    records = Records([record(5.0, 1), record(None, 2), record(3.0, 3), record(4.0, 4)])
    assert records.find(*KEY)[0] == {"rows": 3}
    records.add(record(3.0, 7))
    assert records.find(*KEY)[0] == {"rows": 3}, "of equals the first"
    records.add(record(6.0, 5, preferred=True))
    records.add(record(1.0, 6))
    assert records.find(*KEY)[0] == {"rows": 5}
    assert [found.cost for found in records.best()] == [6.0]


@pytest.mark.parametrize("field", Key._fields)
def test_a_record_of_anything_else_is_not_found(field: str) -> None:
    other = KEY._replace(**{field: "another"})
    records = Records([record(1.0, key=other)])
    assert not records.find(*KEY)
    assert records.find(*other) == [{"rows": 1}]
    assert records.where(**{field: "another"}).trials == records.trials
    assert records.where(**{field: getattr(KEY, field)}).trials == []


def test_records_are_merged_each_once(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    append(a, [record(5.0), record(4.0, 2)])
    append(b, [record(4.0, 2), record(3.0, 3)])
    assert len(merge(a, [a, b]).trials) == 3
    assert [trial.cost for trial in Records.load(a).trials] == [5.0, 4.0, 3.0]
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"target": "accel"}\n', "line 1: expected a record .it has no 'machine'"),
        ("[1, 2]\n", "line 1: expected a record .it is not a JSON object"),
        ("7\n", "line 1: expected a record .it is not a JSON object"),
        ("\n# a comment\n", "line 2: expected a record .'# a comment' is not JSON"),
        (
            record(1.0).line() + "\n" + record(2.0).line()[:40],
            "line 2: .*truncated; delete",
        ),
        (record(1.0).line().replace("1.0", '"fast"') + "\n", "could not convert"),
    ],
)
def test_a_truncated_or_foreign_file_is_one_clear_line(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "records"
    file.write_text(text)
    with pytest.raises(VdlaError, match=said) as caught:
        Records.load(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_bytes_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VdlaError, match="expected text in UTF-8"):
        Records.load(tmp_path / "records")


def test_nothing_is_appended_to_a_truncated_file(tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_text(record(1.0).line()[:40])
    with pytest.raises(VdlaError, match="truncated"):
        append(file, [record(2.0)])
    assert file.read_text() == record(1.0).line()[:40]


def add_many(path: Path, number: int) -> None:
    for rows in range(50):
        append(path, [record(1.0, rows, seed=number), record(2.0, rows, seed=number)])


def test_processes_that_append_do_not_mix_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "records"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add_many, args=(file, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    trials = Records.load(file).trials
    assert len(trials) == 300
    pairs = list(zip(trials[::2], trials[1::2], strict=True))
    assert all((a.seed, a.knobs) == (b.seed, b.knobs) for a, b in pairs)
