"""What the notifier says, heard by a real datagram socket."""

import os
import socket
import uuid

import pytest

from humigence_supervise.systemd import STATUS_MAX_BYTES, UNSET_FOR_CHILDREN, Notifier


class Ear:
    """A datagram socket that stands for systemd's end."""

    def __init__(self, address):
        """Listen at an address, without ever waiting."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(0)

    def heard(self):
        """Give the next message, None when there is none."""
        try:
            return self.socket.recv(8192).decode()
        except BlockingIOError:
            return None


@pytest.fixture
def path(tmp_path):
    """Give the address of the socket."""
    return str(tmp_path / "notify")


@pytest.fixture
def ear(path):
    """Give the listening end."""
    ear = Ear(path)
    yield ear
    ear.socket.close()


def test_every_message_arrives_in_systemds_words(ear, path):
    """READY, STATUS, WATCHDOG and STOPPING are one datagram each, with their status line."""
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": path})
    notifier.ready("starting")
    notifier.status("step 20 of 60")
    notifier.watchdog()
    notifier.stopping("saving")
    assert [ear.heard() for _ in range(5)] == [
        "READY=1\nSTATUS=starting",
        "STATUS=step 20 of 60",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=saving",
        None,
    ]


def test_an_abstract_address_is_understood():
    """A name with "@" is Linux's abstract namespace, as containers and test boxes use it."""
    name = f"humigence-{uuid.uuid4().hex}"
    ear = Ear(f"\0{name}")
    Notifier.from_environ({"NOTIFY_SOCKET": f"@{name}"}).status("hello")
    assert ear.heard() == "STATUS=hello"
    ear.socket.close()


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_silent_where_nobody_listens(environ, monkeypatch):
    """Without a socket we can speak to, no socket is ever opened."""
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("a socket was opened"))
    notifier = Notifier.from_environ(environ | {"WATCHDOG_USEC": "1000000"})
    notifier.ready("x")
    notifier.watchdog()
    assert notifier.watchdog_interval_s is None


def test_a_gone_socket_is_ignored(ear, path):
    """The loop lives on when the manager's socket has vanished, was closed, or was never there."""
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": path})
    ear.socket.close()
    notifier.status("refused")
    os.unlink(path)  # noqa: PTH108 - the plain call is the point
    notifier.status("gone")
    Notifier.from_environ({"NOTIFY_SOCKET": "/" + "x" * 300}).status("too long for an address")


def test_a_full_socket_does_not_block(ear, path):
    """A manager that reads nothing costs us messages, never a wait."""
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": path})
    for number in range(2000):
        notifier.status(str(number))
    count = 0
    while ear.heard() is not None:
        count += 1
    assert 0 < count < 2000


def test_a_status_cannot_forge_another_assignment(ear, path):
    """Line ends in a status become spaces: no worker text can say READY for us."""
    Notifier.from_environ({"NOTIFY_SOCKET": path}).status("loss\nREADY=1\r\nMAINPID=1")
    assert ear.heard() == "STATUS=loss READY=1 MAINPID=1"


def test_a_long_status_is_cut_between_characters(ear, path):
    """What exceeds the limit is cut, and no half character is sent."""
    Notifier.from_environ({"NOTIFY_SOCKET": path}).status("\N{WARNING SIGN}" * 5000)
    heard = ear.heard()
    assert heard == "STATUS=" + "\N{WARNING SIGN}" * (STATUS_MAX_BYTES // 3)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "PID"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "9" * 5000}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_due_at_half_its_time(path, variables, expected):
    """Half of WATCHDOG_USEC, and only if it is meant for this process."""
    given = {key: value.replace("PID", str(os.getpid())) for key, value in variables.items()}
    assert Notifier.from_environ({"NOTIFY_SOCKET": path} | given).watchdog_interval_s == expected


def test_children_lose_what_would_speak_for_us():
    """The names a launch removes from its environment are the three sd_notify reads."""
    assert set(UNSET_FOR_CHILDREN) == {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
