"""The lines around a proof, read again from its file."""

import os

from journals import fallen_back

from humigence_supervise.explain import explain_document, explain_text
from humigence_supervise.surroundings import lines_around


def test_the_lines_around_a_line_have_their_numbers(tmp_path):
    """Six before, three after; less at the ends of the file."""
    log = tmp_path / "stderr.log"
    log.write_text("".join(f"line {number}\n" for number in range(1, 101)))
    around = lines_around(log, 50, "line 50")
    assert [one["line"] for one in around] == list(range(44, 54))
    assert all(one["text"] == f"line {one['line']}" for one in around)
    assert [one["line"] for one in lines_around(log, 2, "line 2")] == [1, 2, 3, 4, 5]
    assert [one["line"] for one in lines_around(log, 100, "line 100")] == list(range(94, 101))


def test_lines_are_found_across_the_blocks_of_a_large_file(tmp_path):
    """A line far inside a file of several blocks has the same number as its text says."""
    log = tmp_path / "stderr.log"
    log.write_text("".join(f"{number:0100}\n" for number in range(1, 60_001)))
    for line in (10_380, 10_381, 59_000):
        around = lines_around(log, line, f"{line:0100}")
        assert [int(one["text"]) for one in around] == list(range(line - 6, line + 4))


def test_a_file_that_cannot_be_read_has_none(tmp_path):
    """Gone, a folder, a FIFO: nothing, and nothing waits."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "gone", tmp_path, tmp_path / "pipe"):
        assert lines_around(path, 3, "") == []


def test_a_line_that_does_not_say_the_proof_is_not_shown_for_it(tmp_path):
    """Where the middle of a log was not read, the number leads to another line."""
    log = tmp_path / "stderr.log"
    log.write_text("".join(f"[rank0]: \x1b[31mline\x1b[0m {number}\n" for number in range(1, 101)))
    assert len(lines_around(log, 50, "line 50")) == 10
    assert lines_around(log, 50, "line 77") == []


def test_explain_shows_the_proof_among_its_neighbours(tmp_path):
    """The proving line is marked, with what its rank wrote before and after."""
    fallen_back(tmp_path)
    log = tmp_path / "attempts/0001/ranks/1/stderr.log"
    log.parent.mkdir(parents=True)
    lines = [f"neighbour {number}\x1b[2J\n" for number in range(1, 30)]
    proof = str(explain_document(tmp_path)["root"]["text"])
    lines[14] = f"{proof}\x1b[2J\n"
    log.write_text("".join(lines))
    document = explain_document(tmp_path)
    assert [one["line"] for one in document["root"]["around"]] == list(range(9, 19))
    text = explain_text(document)
    assert f">     15 | {proof}\n" in text
    assert "      14 | neighbour 14\n" in text
    assert "\x1b" not in text
