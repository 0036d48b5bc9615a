"""Who may import whom: every contract of pyproject.toml holds, and each one can fail."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUPERVISOR = ROOT / "supervisor" / "humigence_supervise"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
PURE = next(contract["source_modules"] for contract in CONTRACTS if contract["id"] == "pure")
STANDARD_LIBRARY_ONLY = ("contract", "keeper", "rank_entry")

# contract, file that gets one more line, the line
VIOLATIONS = [
    ("pure", "supervisor/humigence_supervise/policy.py", "import time"),
    ("pure", "supervisor/humigence_supervise/machine.py", "import os.path"),
    (
        "pure",
        "supervisor/humigence_supervise/diagnose.py",
        "from humigence_supervise import keeper",
    ),
    ("no-torch", "supervisor/humigence_supervise/domain.py", "import torch"),
    ("no-torch", "supervisor/humigence_supervise/cli.py", "from pickle import loads"),
    ("no-torch", "supervisor/humigence_supervise/launch.py", "import humigence_worker.model"),
    ("one-thread", "supervisor/humigence_supervise/loop.py", "from concurrent import futures"),
    ("worker", "worker/humigence_worker/model.py", "import humigence_supervise.domain"),
    ("contract", "supervisor/humigence_supervise/contract.py", "import pydantic"),
    ("contract", "supervisor/humigence_supervise/contract.py", "import humigence_supervise.domain"),
    ("scripts", "supervisor/humigence_supervise/keeper.py", "import humigence_supervise.contract"),
    ("scripts", "supervisor/humigence_supervise/rank_entry.py", "import psutil"),
    ("layers", "supervisor/humigence_supervise/domain.py", "import humigence_supervise.policy"),
    ("layers", "supervisor/humigence_supervise/journal.py", "import humigence_supervise.loop"),
]


def lint_imports(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a tree."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", *options],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree}/supervisor:{tree}/worker"},
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def tree(tmp_path):
    """Give a copy of both packages and the contracts, to be spoiled."""
    for name in ("supervisor", "worker"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_holds():
    """The tree as it stands breaks no import contract."""
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("contract", "file", "line"), VIOLATIONS)
def test_a_planted_import_breaks_its_contract(tree, contract, file, line):
    """One forbidden import in one file is enough to break the contract that forbids it."""
    assert lint_imports(tree, "--contract", contract).returncode == 0
    with (tree / file).open("a") as source:
        source.write(f"\n{line}\n")
    result = lint_imports(tree, "--contract", contract)
    assert result.returncode == 1
    assert "1 broken" in result.stdout


def imported_packages(tree: ast.AST) -> set[str]:
    """Give the top-level packages a module imports anywhere in it; "." is a relative import."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names.update(alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom(level=0):
                names.add(str(node.module).partition(".")[0])
            case ast.ImportFrom():
                names.add(".")
    return names


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_imports_the_standard_library_only(module):
    """These files run or load where nothing is installed, so they import nothing installed."""
    found = imported_packages(ast.parse((SUPERVISOR / f"{module}.py").read_text()))
    assert found <= sys.stdlib_module_names


def test_the_doorway_of_a_rank_is_python_3_8():
    """The worker's interpreter may be older than ours: the doorway's syntax must suit it."""
    source = (SUPERVISOR / "rank_entry.py").read_text()
    ast.parse(source, feature_version=(3, 8))
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case 1: pass", feature_version=(3, 8))


def impure_calls(tree: ast.AST) -> list[str]:
    """Find what no import shows: opening files, asking paths, reading the clock."""
    names = {"open", "print", "input", "exec", "eval"}
    attributes = {"read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file"}
    attributes |= {"is_dir", "stat", "iterdir", "glob", "resolve", "cwd", "home", "now", "utcnow"}
    attributes |= {"today", "expanduser", "absolute"}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                found.append(f"line {node.lineno}: {name}()")
            case ast.Call(func=ast.Attribute(attr=name)) if name in attributes:
                found.append(f"line {node.lineno}: .{name}()")
    return found


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_touch_nothing(module):
    """A pure module asks no file and no clock (the catalogue's loader reads packaged rows)."""
    path = SUPERVISOR.parent / (module.replace(".", "/") + ".py")
    found = impure_calls(ast.parse(path.read_text()))
    if path.stem == "catalogue":
        found = [call for call in found if "read_text" not in call and "iterdir" not in call]
    assert found == []


def test_a_planted_clock_is_seen():
    """The check above does find a call to a clock and a look at a file."""
    source = "from datetime import datetime\ndatetime.now()\nopen('x')\n"
    assert impure_calls(ast.parse(source)) == ["line 2: .now()", "line 3: open()"]
