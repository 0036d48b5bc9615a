"""The worker's data: every shape of input becomes samples, every bad input a clear sentence."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from humigence_worker.data import load_dataset, unigram_bits_per_byte
from humigence_worker.model import IGNORED
from humigence_worker.samples import SEPARATOR, packed
from humigence_worker.settings import WorkerConfigError, WorkerSettings

SETTINGS = WorkerSettings(seq_len=16)


def load(path, **changes):
    """Load `path` with small samples."""
    return load_dataset(replace(SETTINGS, data=str(path), **changes))


def refusal(path, **changes):
    """Return the message that refuses the data at `path`."""
    with pytest.raises(WorkerConfigError) as caught:
        load(path, **changes)
    message = str(caught.value)
    assert str(path) in message
    return message


def stream(samples):
    """Return the bytes that the samples predict, in order."""
    _, targets = samples.batch(range(len(samples)))
    return bytes(targets[targets != IGNORED].tolist())


def write_jsonl(path, records):
    """Write one record a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def learned(samples):
    """Return for each sample the bytes of the context and the bytes with a loss."""
    inputs, targets = samples.batch(range(len(samples)))
    return [
        (bytes(i.tolist()).rstrip(b"\xff"), bytes(t[t != IGNORED].tolist()))
        for i, t in zip(inputs, targets, strict=True)
    ]


# --- samples -----------------------------------------------------------------------------------


def test_windows_predict_every_byte_once():
    """Packed samples cover all symbols but the first; inputs are the targets a place earlier."""
    content = bytes([SEPARATOR]) + bytes(range(65, 65 + 37)) + bytes([SEPARATOR])
    samples = packed(bytearray(content), seq_len=16)
    assert len(samples) == 3
    assert stream(samples) == content[1:]
    inputs, targets = samples.batch([0, 1])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (2, 16)
    assert inputs.flatten()[1:].tolist() == targets.flatten()[:-1].tolist()


def test_the_last_window_is_padded_and_its_padding_ignored():
    """A rest shorter than a sample is kept: no byte is lost, no padding is learned."""
    samples = packed(bytearray(b"\xffabc\xff"), seq_len=8)
    inputs, targets = samples.batch([0])
    assert inputs[0].tolist() == [SEPARATOR, *b"abc", *[SEPARATOR] * 4]
    assert targets[0].tolist() == [*b"abc", SEPARATOR, *[IGNORED] * 4]


def test_a_batch_follows_the_order_of_its_indices():
    """Samples come as asked for, repeats included."""
    samples = packed(bytearray(range(200)), seq_len=16)
    inputs, _ = samples.batch([3, 0, 3])
    assert inputs[:, 0].tolist() == [48, 0, 48]


# --- folders -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder with forty small texts, two levels deep."""
    root = tmp_path / "texts"
    for index in range(40):
        path = root / f"part{index % 3}" / f"file{index:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<{index:02}>")
    return root


def documents(samples):
    """Return the documents in the samples, in order."""
    return [each for each in stream(samples).split(b"\xff") if each]


def test_a_folder_is_split_by_file(folder):
    """Every file is on exactly one side, in the order of names, separated from its neighbours."""
    corpus = load(folder, heldout_fraction=0.25)
    train, heldout = documents(corpus.train), documents(corpus.heldout)
    assert sorted(train + heldout) == [b"<%02d>" % index for index in range(40)]
    assert 0 < len(heldout) < len(train)
    assert train == sorted(train, key=lambda text: (int(text[1:3]) % 3, text))
    assert "40 files, 0 skipped" in corpus.summary


def test_the_same_files_are_held_out_for_ever(folder):
    """Adding and removing other files moves no file from one side to the other."""
    before = set(documents(load(folder, heldout_fraction=0.25).heldout))
    for index in range(40, 60):
        (folder / f"new{index}.txt").write_text(f"<{index}>")
    (folder / "part0" / "file00.txt").unlink()
    corpus = load(folder, heldout_fraction=0.25)
    after = set(documents(corpus.heldout))
    assert before - {b"<00>"} <= after
    assert not (before & set(documents(corpus.train)))


def test_what_is_no_text_is_skipped_and_counted(folder):
    """Binaries, empty files, other encodings, pipes and dead links are told; hidden ones not."""
    (folder / "image.bin").write_bytes(b"GIF\0\1")
    (folder / "late.bin").write_bytes(b"a" * 70_000 + b"\0")
    (folder / "empty.txt").touch()
    (folder / "latin.txt").write_bytes("Ä".encode("latin-1"))
    os.mkfifo(folder / "pipe")
    (folder / "dead").symlink_to(folder / "nowhere")
    (folder / ".hidden").write_text("secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    corpus = load(folder)
    assert "40 files, 6 skipped" in corpus.summary
    assert b"secret" not in stream(corpus.train) + stream(corpus.heldout)


def test_links_to_folders_are_followed_once(folder, tmp_path):
    """A loop of links ends, and a folder that is linked from two places is read once."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "more.txt").write_text("<linked>")
    (folder / "loop").symlink_to(folder)
    (folder / "one").symlink_to(outside)
    (folder / "two").symlink_to(outside)
    (folder / "self").symlink_to("self")
    corpus = load(folder)
    assert (stream(corpus.train) + stream(corpus.heldout)).count(b"<linked>") == 1
    assert "41 files" in corpus.summary


def test_a_file_name_that_is_no_text_is_fine(folder):
    """Names are bytes to the kernel, and to the hash that splits."""
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt")).write_text("<odd>")
    corpus = load(folder)
    assert (stream(corpus.train) + stream(corpus.heldout)).count(b"<odd>") == 1


def test_two_files_suffice_for_a_split(tmp_path):
    """However small the fraction, one of two files is held out, and one is not."""
    (tmp_path / "a.txt").write_text("aaa")
    (tmp_path / "b.txt").write_text("bbb")
    corpus = load(tmp_path, heldout_fraction=0.001)
    assert sorted([stream(corpus.train), stream(corpus.heldout)]) == [b"aaa\xff", b"bbb\xff"]


def test_a_folder_without_text_is_refused(tmp_path):
    """The refusal counts what was there instead."""
    (tmp_path / "x").write_bytes(b"\0")
    assert "1 skipped" in refusal(tmp_path)


def test_the_standard_library_is_real_text_and_loads_fast():
    """The embedded default needs no download: megabytes of source, in well under two seconds."""
    started = time.monotonic()
    corpus = load_dataset(WorkerSettings())
    assert time.monotonic() - started < 2.0
    assert len(corpus.train.symbols) > 2_000_000
    assert len(corpus.heldout) > 50
    assert corpus.train.symbols.dtype == torch.uint8
    assert b"def " in stream(corpus.heldout)
    assert corpus.fingerprint == load_dataset(WorkerSettings()).fingerprint


# --- a text file -------------------------------------------------------------------------------


def test_the_last_part_of_a_text_is_held_out(tmp_path):
    """A single text is cut once: what comes last is never trained on."""
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbf" + bytes(range(48, 58)) * 10)
    corpus = load(path, heldout_fraction=0.1)
    assert stream(corpus.train) == b"0123456789" * 9 + b"\xff"
    assert stream(corpus.heldout) == b"0123456789\xff"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.txt", b"", "empty"),
        ("empty.jsonl", b"", "no record"),
        ("blank.jsonl", b"\n \n", "no record"),
        ("one.txt", b"a", "cut in two"),
        ("nul.txt", b"a\0b", "no UTF-8 text"),
        ("latin.txt", b"\xe4", "no UTF-8 text"),
        ("records.json", b"[]", ".jsonl"),
    ],
)
def test_a_file_with_nothing_to_learn_is_refused(tmp_path, name, content, expected):
    """The refusal names the file and what is the matter with it."""
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in refusal(path)


def test_a_path_that_is_not_there_is_refused(tmp_path):
    """Missing files, and files below files, are told as what they are."""
    assert "no such file or folder" in refusal(tmp_path / "absent")
    (tmp_path / "file").touch()
    assert "cannot be read" in refusal(tmp_path / "file" / "below.jsonl")


# --- records -----------------------------------------------------------------------------------


def test_text_records_are_packed(tmp_path):
    """Texts lie one after the other with separators, each on one side of the split."""
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": f"<{i:02}>", "id": i} for i in range(30)])
    corpus = load(path, heldout_fraction=0.3)
    both = documents(corpus.train) + documents(corpus.heldout)
    assert sorted(both) == [b"<%02d>" % i for i in range(30)]
    assert documents(corpus.heldout)


def test_equal_records_are_on_the_same_side(tmp_path):
    """A duplicate of a trained record is never held out: it would flatter the evaluation."""
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": f"<{i % 20:02}>"} for i in range(200)])
    corpus = load(path, heldout_fraction=0.3)
    assert not set(documents(corpus.train)) & set(documents(corpus.heldout))


def test_the_prompt_of_an_instruction_carries_no_loss(tmp_path):
    """The model reads instruction and input, and learns the output and where it ends."""
    records = [{"instruction": "Add.", "input": "1 1", "output": "2"}, {"instruction": "Sing."}]
    records[1]["output"] = "La \u00e4"
    corpus = load(write_jsonl(tmp_path / "d.jsonl", records), seq_len=64)
    samples = learned(corpus.train) + learned(corpus.heldout)
    by_answer = {answer: context for context, answer in samples}
    assert set(by_answer) == {b"2\xff", "La ä".encode() + b"\xff"}
    context = by_answer[b"2\xff"]
    assert context.endswith(b"### Instruction:\nAdd.\n\n### Input:\n1 1\n\n### Response:\n2")
    assert b"Input" not in by_answer["La ä".encode() + b"\xff"]


def test_only_the_assistant_is_learned_in_a_chat(tmp_path):
    """Every answer of the assistant carries the loss, nothing else does."""
    chat = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "So long"},
    ]
    records = [{"messages": chat}, {"messages": chat[1:3]}]
    corpus = load(write_jsonl(tmp_path / "d.jsonl", records), seq_len=256)
    answers = {answer for _, answer in learned(corpus.train) + learned(corpus.heldout)}
    assert answers == {b"Hello\n\nSo long\n\n\xff", b"Hello\n\n\xff"}


def test_long_records_are_cut_off(tmp_path):
    """A record keeps its first bytes; one whose prompt fills the sample is left out, and told."""
    records = [{"instruction": "x", "output": f"{i:02}" * 500} for i in range(30)]
    records.append({"instruction": "y" * 500, "output": "never seen"})
    path = write_jsonl(tmp_path / "d.jsonl", records)
    corpus = load(path, seq_len=64, heldout_fraction=0.25)
    samples = learned(corpus.train) + learned(corpus.heldout)
    assert len(samples) == 30
    assert all(0 < len(answer) < 64 for _, answer in samples)
    assert "1 of them left out" in corpus.summary
    assert "seq_len" in refusal(path, seq_len=8)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text": "a"', ["not valid JSON", "column"]),
        (b'{"text": "\xff"}', ["UTF-8"]),
        ("[1]", ["a list", "object"]),
        ('{"txt": "a"}', ["unknown shape", '"txt"', '"messages"']),
        ("{}", ["unknown shape", "none"]),
        ('{"text": 1}', ['"text"', "a string", "a number"]),
        ('{"text": "\\ud800"}', ['"text"', "surrogate"]),
        ("[" * 50_000, ["nested too deeply"]),
        ('{"text": ' + "9" * 5000 + "}", ["number"]),
        ('{"instruction": "a"}', ['"output"', "missing"]),
        ('{"instruction": "a", "input": [], "output": "b"}', ['"input"', "a list"]),
        ('{"messages": "hi"}', ['"messages"', "a list", "a string"]),
        ('{"messages": []}', ["assistant"]),
        ('{"messages": ["hi"]}', ["messages[0]", "an object"]),
        ('{"messages": [{"role": "bot", "content": ""}]}', ["messages[0].role", "assistant"]),
        ('{"messages": [{"role": "user"}]}', ["messages[0].content", "missing"]),
        ('{"messages": [{"role": "user", "content": "a"}]}', ["assistant", "nothing to learn"]),
        ('{"messages": [{"role": "assistant", "content": null}]}', ["messages[0].content", "null"]),
        ('{"instruction": "a", "output": "b"}', ["line 1", "shape", "text"]),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, expected):
    """File, line number and what is wrong; blank lines count as lines."""
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'{"text": "fine"}\n\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n"
    )
    message = refusal(path)
    for word in ["line 3", *expected]:
        assert word in message


def test_records_that_are_all_the_same_cannot_be_split(tmp_path):
    """There is nothing to hold out that is not also trained on."""
    assert "held out" in refusal(write_jsonl(tmp_path / "d.jsonl", [{"text": "a"}] * 3))


# --- identity and baseline -----------------------------------------------------------------------


def test_the_fingerprint_is_of_the_samples(folder, tmp_path):
    """It survives a move of the folder and nothing that changes a sample."""
    first = load(folder).fingerprint
    moved = folder.rename(tmp_path / "moved")
    assert load(moved).fingerprint == first
    assert load(moved, seq_len=8).fingerprint != first
    (moved / "part0" / "file00.txt").write_text("<xx>")
    assert load(moved).fingerprint != first


def test_the_fingerprint_sees_what_is_learned(tmp_path):
    """The same bytes with the loss elsewhere are another data set."""
    one = [{"messages": [{"role": r, "content": "a"} for r in ("user", "assistant")]}, None]
    one[1] = {"messages": [{"role": "assistant", "content": "b"}]}
    first = load(write_jsonl(tmp_path / "d.jsonl", one), seq_len=64)
    flipped = replace(first.train, learn=~first.train.learn)
    assert flipped.digest() != first.train.digest()


def test_a_unigram_costs_what_its_counts_say():
    """Half a, half b costs one bit each, and add-one smoothing's small surcharge."""
    train = packed(bytearray(b"\xff" + b"ab" * 50_000), seq_len=16)
    heldout = packed(bytearray(b"\xffabab"), seq_len=16)
    assert unigram_bits_per_byte(train, heldout) == pytest.approx(1.0, abs=0.01)
    unseen = packed(bytearray(b"\xffz"), seq_len=16)
    assert unigram_bits_per_byte(train, unseen) == pytest.approx(16.6, abs=0.1)
