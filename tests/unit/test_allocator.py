"""Expandable segments: the name a torch knows, merged with what is set already."""

from __future__ import annotations

import pytest

from humigence_supervise.allocator import defragmented
from humigence_supervise.domain import EnvChange

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"


def user(name: str, value: str) -> EnvChange:
    """Return a variable that the configuration sets."""
    return EnvChange(name, value, "config", "the user's", "")


def final(
    changes: tuple[EnvChange, ...], inherited: dict[str, str], torch_version: str | None
) -> dict[str, str]:
    """Return the environment a worker gets."""
    own = defragmented(changes, inherited, torch_version)
    names = [change.name for change in own]
    assert len(names) == len(set(names)), "a variable is set twice"
    return {**inherited, **{change.name: change.value for change in own}}


@pytest.mark.parametrize(
    ("torch_version", "name"),
    [
        ("2.1.0", OLD),
        ("2.9.1+cu128", OLD),
        ("2.10.0", NEW),
        ("2.13.0", NEW),
        ("3.0.0", NEW),
        (None, OLD),
        ("nightly", OLD),
    ],
)
def test_the_name_is_the_one_that_this_torch_reads(torch_version: str | None, name: str) -> None:
    """Renamed in 2.10, which still reads the old one: so that is right where nobody knows."""
    assert final((), {}, torch_version) == {name: ON}


@pytest.mark.parametrize(
    ("options", "merged"),
    [
        ("", ON),
        ("max_split_size_mb:128", f"max_split_size_mb:128,{ON}"),
        ("expandable_segments:False", ON),
        (" expandable_segments : False ,max_split_size_mb:128", f"max_split_size_mb:128,{ON}"),
        (ON, ON),
        (
            "roundup_power2_divisions:[256:1,512:2,>:8],backend:native",
            f"roundup_power2_divisions:[256:1,512:2,>:8],backend:native,{ON}",
        ),
        (",,", ON),
    ],
)
@pytest.mark.parametrize("torch_version", ["2.9.0", "2.13.0"])
@pytest.mark.parametrize("where", ["inherited", "changes"])
@pytest.mark.parametrize("set_as", [OLD, NEW])
def test_other_options_are_kept(
    options: str, merged: str, torch_version: str, where: str, set_as: str
) -> None:
    """Whatever was set, under whichever name and by whom, holds on beside it."""
    changes = (user(set_as, options),) if where == "changes" else ()
    inherited = {set_as: options} if where == "inherited" else {}
    name = NEW if torch_version == "2.13.0" else OLD
    assert final(changes, inherited, torch_version)[name] == merged


def test_the_configuration_wins_over_what_is_inherited() -> None:
    """As it does for every variable."""
    changes = (user(NEW, "backend:native"),)
    assert final(changes, {NEW: "garbage:1"}, "2.13.0")[NEW] == f"backend:native,{ON}"


def test_other_changes_stay_as_they_are_and_the_own_one_says_why() -> None:
    """`plan` shows who set it, and for what."""
    other = user("NCCL_DEBUG", "WARN")
    first, own = defragmented((other,), {}, "2.13.0")
    assert first is other
    assert own.why
    assert own.source
