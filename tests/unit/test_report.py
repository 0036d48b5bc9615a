"""The report: one file that tells a run, whatever its logs say and however far it got."""

import math
import re
from html.parser import HTMLParser

import pytest
from journals import START_S, Book, diagnosis_of, fallen_back, hit, nccl_failure

from humigence_supervise.accounting import account_run
from humigence_supervise.contract import EXIT_SIGTERM, JOURNAL_FILE
from humigence_supervise.curves import MAX_POINTS, Thinned, read_curves
from humigence_supervise.domain import Kind, Launcher, Rung
from humigence_supervise.happenings import Begin, Diagnosed, NotPrepared, StopRequested, TreeGone
from humigence_supervise.journal import JournalError, read_journal
from humigence_supervise.report import report_html, write_report
from humigence_supervise.report_page import MAX_TEXT, duration, safe
from humigence_supervise.spent import Use, stretches, totals

VOID = {"meta", "br"}
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "section", "h1", "h2", "p", "br"),
    *("span", "div", "dl", "dt", "dd", "figure", "figcaption", "footer", "strong", "code"),
    *("table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "rect", "line", "polyline", "circle", "text"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "scope", "viewbox", "role"),
    *("aria-label", "aria-hidden", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "points"),
    *("width", "height", "text-anchor"),
}


class Page(HTMLParser):
    """A report taken apart: every tag closed in its order, only known tags and attributes."""

    def __init__(self, html: str):
        """Parse `html` and check its build."""
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        """Take in an element."""
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """Close the innermost element, which must be this one."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Keep what a reader sees."""
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All text in one line."""
        return " ".join(" ".join(self.texts).split())

    def classes(self, tag: str) -> list[str]:
        """Return the classes of all elements of a tag, in order."""
        return [attrs.get("class", "") for name, attrs in self.elements if name == tag]

    def points(self) -> list[list[tuple[float, float]]]:
        """Return the corners of each polyline."""
        lines = [attrs["points"] for name, attrs in self.elements if name == "polyline"]
        return [[tuple(map(float, one.split(","))) for one in line.split()] for line in lines]


def spent(run_dir, until_s: float) -> dict[Use, float]:
    """Return the seconds of every use that took any, until `until_s` after the run's begin."""
    entries = read_journal(run_dir / JOURNAL_FILE)
    curves = read_curves(run_dir, range(1, 9), entries)
    parts = stretches(entries, curves, START_S + until_s)
    assert [one.end_s for one in parts[:-1]] == [one.begin_s for one in parts[1:]]
    return {use: round(took_s, 3) for use, took_s in totals(parts).items() if took_s}


# --- the page ----------------------------------------------------------------------------------


def test_a_run_that_fell_back_is_told_in_sentences_and_tables(tmp_path):
    """What happened, both attempts, the cause with its evidence, the decision and the ledger."""
    fallen_back(tmp_path)
    page = Page(report_html(tmp_path))
    for fact in (
        "completed after 1 min 16 s, at step 30 of 30",
        "It made 2 attempts; one of them failed.",
        "Attempt 1 on multi_gpu failed after step 19. Another rank went away (rank 1).",
        "falling back to single GPU training on cuda:0.",
        "Attempt 2 on single_gpu began from step 10.",
        "step 10 (step-00000010)",
        "11 to 30",
        "Rank 1 (pid 77) exited with code 1.",
        "attempt 1, ranks/1/stderr.log:15, rank 1",
        "Look at the other rank.",
        "batch 8 = 4 x 1 x 2 ranks",
        "Each of the 240 samples up to step 30 counts exactly once: 0 lost, 0 repeated, 9 redone",
    ):
        assert fact in page.text, fact


def test_the_pictures_show_attempts_time_and_incidents(tmp_path):
    """Bars by how they ended, stretches of time, the kept and the redone curve, one mark."""
    fallen_back(tmp_path)
    page = Page(report_html(tmp_path))
    bars = page.classes("rect")
    assert [bar for bar in bars if bar.startswith("a-")] == ["a-failed", "a-completed"]
    uses = ("around", "productive", "redone", "recovery", "productive", "around")
    assert bars[2:8] == [f"u-{use}" for use in uses]
    assert page.classes("polyline") == ["curve", "curve again", "curve"]
    assert page.classes("circle") == ["spot"]
    kept, again, second = page.points()
    assert (len(kept), len(again), len(second)) == (10, 10, 20)
    assert kept[-1] == again[0]


def test_the_file_loads_and_runs_nothing(tmp_path):
    """No address, no script, no import; a policy forbids them as well."""
    fallen_back(tmp_path)
    html = report_html(tmp_path)
    assert "default-src 'none'" in html
    for word in ("http:", "https:", "<script", "url(", "@import", " src=", " href="):
        assert word not in html.lower()


HOSTILE = (
    ("</title></style></svg></table><script>alert(1)</script>", "</svg></table><script>alert(1)"),
    ("\"><img src=x onerror=alert(1)> ' onload='alert(1)", "\"><img src=x onerror=alert(1)> ' onl"),
    ("<!-- ]]> &lt;b&gt; &#60;script&#62; <![CDATA[", "<!-- ]]> &lt;b&gt; &#60;script"),
    (
        "\x00\x1b[31mred\x1b[0m\u202eesrever\udcff\ud800\x9b2J\n</p>",
        "\\x00red\\u202eesrever\\xff\\ud800",
    ),
    ("x" * 100_000, "x" * MAX_TEXT + " ..."),
)


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_hostile_text_stays_text(tmp_path, text, shown):
    """Names, log lines, reasons and advice of any content add no element and no attribute."""
    rungs = (Rung(text, "all", Launcher.TORCHRUN), Rung(f"{text} 2", 1, Launcher.PYTHON))
    book = Book(tmp_path, name=text, rungs=rungs)
    book.progress(book.attempt(2), range(1, 20), 10)
    symptoms = (hit(Kind.UNKNOWN, text),)
    made = diagnosis_of(Kind.NCCL_REMOTE, text, hit(Kind.NCCL_REMOTE, text), symptoms)
    book.fails(40, 19, made, checkpoint_step=0)
    book.attempt(50)
    book.happen(60, TreeGone(f"It ended: {text}", 0.0, {"note": text}))
    html = report_html(tmp_path)
    page = Page(html)
    html.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    assert len(html) < 100_000
    assert page.text.count(shown) > 5


def test_text_is_bounded_and_one_line():
    """A long line is cut before it is escaped, and the cut is shown."""
    assert safe("a<b\n\"c'") == "a&lt;b &quot;c&#x27;"
    assert safe("&" * MAX_TEXT) == "&amp;" * MAX_TEXT
    assert safe("&" * (MAX_TEXT + 1)) == "&amp;" * MAX_TEXT + " ..."


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 00 s"),
        (192, "3 min 12 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (3 * 86_400 + 4 * 3600, "3 d 04 h"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds, says):
    """No unit overflows into "60 s" or "60 min"."""
    assert duration(seconds) == says


# --- however far the run got -------------------------------------------------------------------


def test_a_live_run_is_told_as_far_as_it_got(tmp_path):
    """The attempt still runs, the state is running, the time reaches to its last step."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 20), 10)
    page = Page(report_html(tmp_path))
    assert "had not ended at" in page.text
    assert "29.0 s later: it is running, at step 19 of 30." in page.text
    assert "still running" in page.text
    assert "a-running" in page.classes("rect")


def test_a_waiting_run_says_so(tmp_path):
    """Between a failure and the retry the run is waiting."""
    book = Book(tmp_path)
    book.attempt(2)
    book.fails(5, 0, diagnosis_of(Kind.HOST_OOM, "No memory.", root=None), 0)
    assert "it is waiting" in Page(report_html(tmp_path)).text


def test_a_run_without_progress_files(tmp_path):
    """The page is whole; what cannot be known is unknown, and the journal's steps are used."""
    book = Book(tmp_path)
    book.attempt(2)
    bare = Page(report_html(tmp_path))
    assert "No loss was reported." in bare.text
    assert "nothing is known about them" in bare.text
    assert "productive unknown" in bare.text
    book.heartbeat(20, 7, loss=1.25)
    book.heartbeat(40, 9, loss=1.0)
    known = Page(report_html(tmp_path))
    assert known.classes("polyline") == ["curve"]
    assert "at step 9" in known.text


def test_an_empty_or_missing_journal(tmp_path):
    """Nothing was begun: the page says that and has no tables."""
    missing = Page(report_html(tmp_path))
    (tmp_path / JOURNAL_FILE).write_bytes(b"")
    empty = Page(report_html(tmp_path))
    for page in (missing, empty):
        assert "Nothing is journaled yet" in page.text
        assert not page.classes("table")


def test_a_run_that_failed_before_any_attempt(tmp_path):
    """The reason of the end stands in the page."""
    Book(tmp_path).happen(1, NotPrepared("the script is missing"))
    page = Page(report_html(tmp_path))
    assert "failed after 1.0 s" in page.text
    assert "the script is missing" in page.text


def test_unreadable_progress_is_named_and_the_rest_told(tmp_path):
    """A file in the place of a progress folder costs the curve, not the report."""
    book = fallen_back(tmp_path)
    (book.folder(2) / "progress").rename(tmp_path / "elsewhere")
    (book.folder(2) / "progress").write_text("no folder")
    page = Page(report_html(tmp_path))
    assert "Not read: progress:" in page.text
    assert "exactly once is unknown" in page.text
    assert "Another rank went away (rank 1)." in page.text


def test_a_damaged_journal_is_refused(tmp_path):
    """A report on a hole would be worse than none."""
    fallen_back(tmp_path)
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes().replace(b"multi_gpu", b"multi_gqu", 1))
    with pytest.raises(JournalError, match="damaged"):
        report_html(tmp_path)


# --- the curve ---------------------------------------------------------------------------------


def test_long_curves_are_thinned_and_keep_their_spikes(tmp_path):
    """40 000 steps become at most 2000 points, and the single highest and lowest stay."""
    book = Book(tmp_path)
    spikes = {17_771: 50.0, 31_003: -3.0}
    book.progress(
        book.attempt(2), range(1, 40_001), 10, step_s=0.01, loss=lambda n: spikes.get(n, 2.0)
    )
    (points,) = Page(report_html(tmp_path)).points()
    assert 500 <= len(points) <= MAX_POINTS
    heights = [y for _, y in points]
    assert (heights.count(min(heights)), heights.count(max(heights))) == (1, 1)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


@pytest.mark.parametrize("most", [8, 9, 2000])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000, 12_345])
def test_thinning_never_exceeds_its_bound(most, count):
    """Whatever the numbers, the bound holds and few points are all kept."""
    thinned = Thinned(most)
    for n in range(count):
        thinned.add((n, math.sin(n)))
    points = thinned.points()
    assert len(points) <= most
    assert len(points) >= min(count, most // 4)
    if count <= most // 2:
        assert points == tuple((n, math.sin(n)) for n in range(count))


@pytest.mark.parametrize("huge", [1.7e308, -1.7e308, math.nan, math.inf])
def test_losses_of_any_size_can_be_drawn(tmp_path, huge):
    """No coordinate is NaN or infinite; steps without a finite loss are counted."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 9), 10, loss=lambda n: huge if n == 4 else -1.7e307 * n)
    page = Page(report_html(tmp_path))
    for line in page.points():
        assert all(0 <= x <= 720 for x, _ in line)
        assert (min(y for _, y in line), max(y for _, y in line)) == (26.0, 262.0)
    counted = "Steps whose loss was not a finite number: 1." in page.text
    assert counted == (not math.isfinite(huge))


# --- the time ----------------------------------------------------------------------------------


def test_the_wall_time_is_accounted_for_to_the_second(tmp_path):
    """Productive, redone, recovery and the rest join without a gap and sum to the wall time."""
    fallen_back(tmp_path)
    found = spent(tmp_path, 76)
    assert found == {
        Use.AROUND: 10 + 6,  # 0-10 start; 70-76 finish
        Use.PRODUCTIVE: 10 + 20,  # steps 1-10 and 11-30
        Use.REDONE: 9,  # steps 11-19 of attempt 1
        Use.RECOVERY: 11 + 10,  # 29-40 unnoticed, 40-50 to the next attempt's training
    }
    assert sum(found.values()) == 76
    assert account_run(tmp_path).productive_s == pytest.approx(found[Use.PRODUCTIVE])


def test_pauses_and_stops_are_kept_apart(tmp_path):
    """A backoff is waiting; the time between a stop and the next start is stopped."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 11), 10)
    book.fails(30, 10, diagnosis_of(Kind.HOST_OOM, "No memory.", root=None), 10)
    book.happen(132, StopRequested(EXIT_SIGTERM))
    book.happen(1132, Begin({}))
    book.progress(book.attempt(1133, resume_step=10), range(11, 21), 1140)
    found = spent(tmp_path, 1150)
    assert found == {
        Use.AROUND: 10 + 8,  # 0-10; 1132-1140
        Use.PRODUCTIVE: 10 + 10,
        Use.RECOVERY: 12,  # 20-32
        Use.WAITING: 100,  # 32-132
        Use.STOPPED: 1000,
    }


def test_a_stopped_attempt_is_no_recovery(tmp_path):
    """Saving and ending on request is counted with starting and finishing."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 11), 10)
    book.happen(21, StopRequested(EXIT_SIGTERM))
    book.happen(24, TreeGone("The launcher exited with code 143.", 0.0))
    made = diagnosis_of(Kind.PREEMPTED, "The run was stopped on request.", root=None)
    book.happen(25, Diagnosed(made, 10, 10, 1))
    assert spent(tmp_path, 25) == {Use.AROUND: 15, Use.PRODUCTIVE: 10}
    page = Page(report_html(tmp_path))
    assert "was stopped after 25.0 s" in page.text
    assert "a-ended" in page.classes("rect")


def test_an_attempt_without_steps_beside_one_with_steps(tmp_path):
    """A fruitless attempt after a failure is recovery; alone it is unknown."""
    book = Book(tmp_path)
    number = book.attempt(2)
    book.fails(20, 0, nccl_failure(), 0)
    assert spent(tmp_path, 22)[Use.UNKNOWN] == 19
    book.progress(number, range(1, 3), 10)
    book.attempt(23)
    book.fails(30, 2, nccl_failure(), 0)
    found = spent(tmp_path, 32)
    assert found == {Use.AROUND: 10, Use.PRODUCTIVE: 2, Use.RECOVERY: 20}


def test_a_worker_with_a_wrong_clock_breaks_no_sum(tmp_path):
    """Steps from the far future or the past are cut to the attempt they belong to."""
    for name, begin_s in (("future", 1e12), ("past", -1e9)):
        run_dir = tmp_path / name
        run_dir.mkdir()
        book = Book(run_dir)
        book.progress(book.attempt(2), range(1, 20), begin_s)
        book.ends_well(75, 30)
        assert sum(spent(run_dir, 76).values()) == 76
        assert "wall time 1 min 16 s" in Page(report_html(run_dir)).text.replace("  ", " ")


# --- the file ----------------------------------------------------------------------------------


def test_the_report_appears_whole_and_replaces_an_old_one(tmp_path):
    """Nothing is left beside it, and the old content is gone."""
    fallen_back(tmp_path)
    before = set(tmp_path.iterdir())
    target = tmp_path / "report.html"
    target.write_text("old")
    write_report(tmp_path, target)
    Page(target.read_text())
    assert set(tmp_path.iterdir()) == before | {target}


def test_a_target_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    """A folder in its place stays, and no part of a file is left."""
    fallen_back(tmp_path)
    target = tmp_path / "out"
    target.mkdir()
    before = set(tmp_path.iterdir())
    with pytest.raises(IsADirectoryError):
        write_report(tmp_path, target)
    assert set(tmp_path.iterdir()) == before
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path, tmp_path / "nowhere" / "report.html")
