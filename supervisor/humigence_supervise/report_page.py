"""The frame of the report: text made safe, tables, and one page with its style inside. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from humigence_supervise.printable import for_people

MAX_TEXT: Final = 600
"""Characters shown of one text; what a log line says beyond is in the log."""

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2329; --soft: #5b6570;
  --line: #d9dee3; --card: #f4f6f8; --productive: #2f7dc4; --redone: #e0a030; --recovery: #d0503f;
  --waiting: #8a94a0; --around: #86b7dd; --stopped: #c9d0d6; --unknown: #b79ad0; --good: #2e8b57; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e6e9ec; --soft: #9aa5b0;
  --line: #333b43; --card: #1d2329; --productive: #5aa2e0; --redone: #e6b455; --recovery: #e8705f;
  --around: #37618a; --stopped: #3d464f; --unknown: #8d72a8; --good: #55b982; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; } .soft, figcaption, footer { color: var(--soft); font-size: .875rem; }
.badge { font-size: .875rem; padding: .15rem .6rem; border-radius: 1rem; color: #ffffff;
  background: var(--waiting); vertical-align: middle; }
.completed { background: var(--good); } .failed, .gave_up { background: var(--recovery); }
.running { background: var(--productive); }
dl.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr));
  gap: .5rem; margin: 1rem 0; }
dl.figures div { background: var(--card); border-radius: .5rem; padding: .5rem .75rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-size: 1.1rem; font-weight: 600; }
.wide { overflow-x: auto; } figure { margin: .5rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem .4rem 0;
  border-bottom: 1px solid var(--line); min-width: 4.5rem; }
td.long { min-width: 15rem; } code { font-size: .85em; overflow-wrap: anywhere; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .inside { fill: #ffffff; }
.grid { stroke: var(--line); stroke-width: 1; } .curve { fill: none; stroke-width: 1.6;
  stroke: var(--productive); stroke-linejoin: round; stroke-linecap: round; }
.again { stroke: var(--redone); stroke-dasharray: 4 3; } .mark { stroke: var(--recovery);
  stroke-dasharray: 2 3; } .spot { fill: var(--recovery); } .dot { fill: var(--productive); }
.u-productive { fill: var(--productive); } .u-redone { fill: var(--redone); }
.u-recovery { fill: var(--recovery); } .u-waiting { fill: var(--waiting); }
.u-around { fill: var(--around); } .u-stopped { fill: var(--stopped); }
.u-unknown { fill: var(--unknown); } .a-failed { fill: var(--recovery); }
.a-completed { fill: var(--good); } .a-running { fill: var(--productive); }
.a-ended { fill: var(--waiting); }
svg.key { display: inline-block; width: .8rem; min-width: 0; height: .8rem; margin-right: .4rem; }
"""


def safe(value: object) -> str:
    """Return any text as it may stand in the page: one line, bounded, escaped."""
    line = " ".join(for_people(part) for part in str(value).split("\n")).strip()
    shown = line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + " ..."
    return html.escape(shown)


def duration(seconds: float) -> str:
    """Return a duration as people say it: ``4.2 s``, ``3 min 12 s``, ``2 h 05 min``."""
    if round(seconds, 1) < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S:02d} h"


def moment(unix_s: float) -> str:
    """Return a Unix time as people read it, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, long: Sequence[str] = ()) -> str:
    """Return a table of cells that are HTML already; columns named in `long` hold sentences."""
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in heads)
    kinds = [' class="long"' if name in long else "" for name in heads]
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the key figures, each a name and a value."""
    cells = "".join(f"<div><dt>{safe(n)}</dt><dd>{safe(v)}</dd></div>" for n, v in pairs)
    return f'<dl class="figures">{cells}</dl>'


def section(title: str, body: str) -> str:
    """Return a part of the page; `body` is HTML already."""
    return f"<section>\n<h2>{safe(title)}</h2>\n{body}\n</section>"


def page(title: str, body: str) -> str:
    """Return the whole document. It may load nothing and run nothing, whatever stands in it."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
