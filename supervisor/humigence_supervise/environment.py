"""The environment of a worker: the hardened table under what the user says.

Whose value counts, first to last: the rung's `env`, `worker.env`, the environment the
supervisor was started in, this table. Rows that are `pinned` do not follow an inherited value,
because following it would take protection away; a value in the configuration still wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from humigence_supervise.domain import Accelerator, EnvChange, Host
from humigence_supervise.environment_table import TABLE, Row, Scene

HARDENED: Final = "hardened"
CONFIG: Final = "config"
RUNG: Final = "rung"
INHERITED: Final = "inherited"
CONTRACT: Final = "contract"


def hardened(
    host: Host,
    accelerator: Accelerator,
    attempt_dir: Path,
    *,
    run_id: str,
    grace_s: float,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    rung_env: Mapping[str, str],
    debug: bool = False,
) -> tuple[EnvChange, ...]:
    """Return every variable the table or the user sets, and who set it.

    `inherited` is the environment the supervisor was started in, `user` is `worker.env`,
    `rung_env` the rung's. An inherited value that stays is listed with its setter "inherited".
    """
    given = {**inherited, **user, **rung_env}
    scene = Scene(host, accelerator, attempt_dir, run_id, grace_s, given, debug)
    changes = {
        row.name: _change(row, value, inherited, user, rung_env)
        for row in TABLE
        if (value := row.value if isinstance(row.value, str) else row.value(scene)) is not None
    }
    for name in (*user, *rung_env):
        if name not in changes:
            changes[name] = _of_the_user(name, user, rung_env)
    return tuple(changes.values())


def _change(
    row: Row,
    value: str,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    rung_env: Mapping[str, str],
) -> EnvChange:
    if row.name in rung_env or row.name in user:
        own = _of_the_user(row.name, user, rung_env)
        return EnvChange(own.name, own.value, own.setter, f"{own.why} (instead of {value})")
    theirs = inherited.get(row.name)
    if theirs is None or theirs == value:
        return EnvChange(row.name, value, HARDENED, row.why, row.source)
    if row.pinned:
        why = f'{row.why} (not the inherited "{theirs}"; worker.env can set it)'
        return EnvChange(row.name, value, HARDENED, why, row.source)
    why = f"set where the supervisor was started (instead of {value}: {row.why})"
    return EnvChange(row.name, theirs, INHERITED, why, row.source)


def _of_the_user(name: str, user: Mapping[str, str], rung_env: Mapping[str, str]) -> EnvChange:
    if name in rung_env:
        return EnvChange(name, rung_env[name], RUNG, "env of this rung in the configuration")
    return EnvChange(name, user[name], CONFIG, "worker.env in the configuration")


_FOREIGN_NAMES: Final = re.compile(
    r"TORCHELASTIC_.*|PET_.*|HUMIGENCE_.*|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME"
    r"|ROLE_WORLD_SIZE|NOTIFY_SOCKET|WATCHDOG_PID|WATCHDOG_USEC|LISTEN_FDS|LISTEN_PID"
    r"|LISTEN_FDNAMES"
)


def foreign(inherited: Mapping[str, str], own: frozenset[str]) -> tuple[str, ...]:
    """Return inherited names that would mislead a worker, sorted; `own` are set on purpose.

    Leftovers of an outer torchrun (its PET_* are defaults of torchrun's options), of an outer run
    of ours, and the sockets systemd gave to the supervisor alone.
    """
    return tuple(sorted(n for n in inherited if _FOREIGN_NAMES.fullmatch(n) and n not in own))
