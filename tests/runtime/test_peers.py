"""Who a peer is, and the decision whether it may come in."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.peers import OVERFLOW_ID, Access, Ids, Peer, SocketFile, is_allowed, peer_of
from tests.others import IN_NAMESPACE, needs_root, skip_without_namespaces

SOME_ID = st.sampled_from([0, 7, 8, 9, OVERFLOW_ID])
SOME_IDS = st.frozensets(SOME_ID)
SOME_PEER = st.builds(Peer, st.just(1), SOME_ID, SOME_IDS)
SOME_ACCESS = st.builds(Access, SOME_IDS, SOME_IDS)
ALL_KNOWN = Ids(7, None, None)
SOME_STRANGE = Ids(7, OVERFLOW_ID, OVERFLOW_ID)


def listening(path: Path, mode: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    path.chmod(mode)
    return sock


def test_a_peer_is_the_process_at_the_other_end_with_all_its_groups() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.gids == {os.getegid(), *os.getgroups()}


def test_a_socket_without_a_peer_has_none_to_tell_of() -> None:
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError, match="No data"):
        peer_of(sock)


@given(SOME_PEER, SOME_ACCESS, st.none() | SOME_ID)
def test_without_strangers_each_right_opens_the_door(
    peer: Peer, access: Access, socket_gid: int | None
) -> None:
    is_right = [
        peer.uid in {0, ALL_KNOWN.own_uid},
        peer.uid in access.uids,
        not access.gids.isdisjoint(peer.gids),
        socket_gid in peer.gids,
    ]
    assert is_allowed(peer, access, socket_gid, ALL_KNOWN) == any(is_right)


@given(SOME_PEER, SOME_ACCESS, st.none() | SOME_ID)
def test_the_id_of_all_strangers_opens_no_door(
    peer: Peer, access: Access, socket_gid: int | None
) -> None:
    known = Access(access.uids - {OVERFLOW_ID}, access.gids - {OVERFLOW_ID})
    for own_uid in (7, OVERFLOW_ID):
        strange = Ids(own_uid, OVERFLOW_ID, OVERFLOW_ID)
        without_it = is_allowed(
            Peer(1, 10 if peer.uid == OVERFLOW_ID else peer.uid, peer.gids - {OVERFLOW_ID}),
            known,
            None if socket_gid == OVERFLOW_ID else socket_gid,
            Ids(7 if own_uid == 7 else 11, None, None),
        )
        assert is_allowed(peer, access, socket_gid, strange) == without_it


@pytest.mark.parametrize(
    ("mode", "counts"),
    [(0o600, False), (0o640, False), (0o660, True), (0o666, True), (0o606, False)],
)
def test_a_group_counts_where_the_mode_of_the_sockets_file_lets_it_write(
    tmp_path: Path, mode: int, counts: bool
) -> None:
    path = tmp_path / "socket"
    with listening(path, mode) as sock:
        assert SocketFile(sock).gid == (path.stat().st_gid if counts else None)


def test_no_group_counts_without_a_file_or_where_it_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listening(path, 0o660) as sock, socket.socket(socket.AF_UNIX) as abstract:
        path.unlink()
        assert SocketFile(sock).gid is None
        path.write_text("")
        path.chmod(0o660)
        assert SocketFile(sock).gid is None
        abstract.bind(f"\0{path}")
        assert SocketFile(abstract).gid is None
    with socket.socket(socket.AF_UNIX) as nameless:
        assert SocketFile(nameless).gid is None


def test_the_mode_and_the_group_of_the_file_are_those_of_now(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listening(path, 0o600) as sock:
        file = SocketFile(sock)
        path.chmod(0o660)
        assert file.gid == path.stat().st_gid
        path.chmod(0o606)
        assert file.gid is None


@pytest.mark.parametrize("had_file", [True, False])
def test_a_file_that_somebody_else_puts_at_the_path_gives_no_rights(
    tmp_path: Path, had_file: bool
) -> None:
    path, away = tmp_path / "socket", tmp_path / "away"
    with listening(path, 0o660) as sock:
        if not had_file:
            path.rename(away)
        file = SocketFile(sock)
        if had_file:
            path.rename(away)
        with listening(path, 0o660):
            assert file.gid is None
        path.unlink()
        away.rename(path)
        assert file.gid == (path.stat().st_gid if had_file else None)


def test_a_namespace_that_knows_everybody_has_no_id_of_strangers() -> None:
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        pytest.skip("we are in a user namespace that does not know everybody")
    assert Ids.of_this_process() == Ids(os.geteuid(), None, None)


@needs_root
def test_in_a_namespace_of_few_the_others_are_strangers() -> None:
    skip_without_namespaces()
    asks = "from runnerd.peers import Ids; print(Ids.of_this_process())"
    done = subprocess.run(
        [*IN_NAMESPACE, sys.executable, "-c", asks], capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == str(Ids(0, OVERFLOW_ID, OVERFLOW_ID))
