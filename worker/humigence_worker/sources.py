"""Where documents come from: a folder of text files, or the standard library's own source."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_worker.strict_json import WorkerConfigError

_HEAD_BYTES: Final = 65536
_UTF8_BOM: Final = b"\xef\xbb\xbf"

# Not in every distribution's standard library package, not the library itself, or generated.
_NOT_LIBRARY: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "pydoc_data", "__pycache__"}
)


@dataclass(frozen=True, slots=True)
class Document:
    """One text: its name (relative to the source, with slashes) and its UTF-8 bytes."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder held. `skipped` counts what is binary, empty, not UTF-8 or unreadable."""

    documents: tuple[Document, ...]
    skipped: int


def read_folder(root: Path) -> Folder:
    """Read every text file below `root`, in the order of their names.

    Hidden files and folders are passed over. Links are followed, but no folder is read twice, so
    a loop of links ends.

    Raises:
        OSError: when `root` itself cannot be listed.
    """
    return _read_tree(root, lambda _: True, frozenset())


def read_stdlib() -> Folder:
    """Read the source of the running interpreter's standard library, without its tests.

    Raises:
        WorkerConfigError: where this interpreter has no source files (a zipped or stripped one).
    """
    root = Path(sysconfig.get_path("stdlib"))
    try:
        folder = _read_tree(root, lambda name: name.endswith(".py"), _NOT_LIBRARY)
    except OSError:
        folder = Folder((), 0)
    if not folder.documents:
        raise WorkerConfigError(
            f"{root}: data is stdlib, but this interpreter came without its library's source. "
            'Set "data" to a text file, a .jsonl file or a folder of text.'
        )
    return folder


def read_text(path: Path) -> bytes | None:
    """Return the UTF-8 text in the regular file `path` without a byte order mark; None if none.

    Raises:
        OSError: when the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    with path.open("rb") as file:
        content = file.read(_HEAD_BYTES)
        if b"\0" in content:
            return None  # most binary files end here, unread
        content = (content + file.read()).removeprefix(_UTF8_BOM)
    if not content or b"\0" in content:
        return None
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return content


def _read_tree(root: Path, wanted: Callable[[str], bool], excluded: frozenset[str]) -> Folder:
    documents = []
    unlisted: list[OSError] = []
    skipped = 0
    for name in _names(root, wanted, excluded, unlisted):
        try:
            content = read_text(root / name)
        except OSError:
            content = None
        if content is None:
            skipped += 1
        else:
            documents.append(Document(name, content))
    for error in unlisted:
        if error.filename == str(root):
            raise error
    return Folder(tuple(documents), skipped + len(unlisted))


def _names(
    root: Path, wanted: Callable[[str], bool], excluded: frozenset[str], unlisted: list[OSError]
) -> Iterator[str]:
    seen = set()
    for folder, folders, files in os.walk(root, onerror=unlisted.append, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(f for f in folders if f not in excluded and not f.startswith("."))
        for name in sorted(files):
            if wanted(name) and not name.startswith("."):
                yield (Path(folder) / name).relative_to(root).as_posix()
