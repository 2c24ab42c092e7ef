"""Connections of other users: a child of ours takes their ids, connects, and hands us the socket.

The kernel notes who connects at that moment, so the socket is theirs whoever speaks over it.
"""

import ctypes
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

CLONE_NEWUSER = 0x10000000
PR_SET_DUMPABLE = 4

IN_NAMESPACE = ("unshare", "--user", "--map-root-user")  # that knows root, and nobody else

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for other users")


def skip_without_namespaces() -> None:
    """Skip a test where no user namespace can be made."""
    done = subprocess.run([*IN_NAMESPACE, "true"], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")


def let_all_connect(path: Path, mode: int = 0o666) -> None:
    """Take what the system's own permissions would say out of the way."""
    path.parent.chmod(0o711)
    path.chmod(mode)


def connected_as(
    path: Path | str,
    uid: int,
    gid: int | None = None,
    groups: Sequence[int] = (),
    *,
    poses_as_root: bool = False,
) -> socket.socket:
    """Connect as a user, of the group of the same number unless told otherwise.

    One who poses as root is that in a user namespace of its own.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if not child:
            _hand_over(theirs, path, uid, uid if gid is None else gid, groups, poses_as_root)
        theirs.close()
        data, fds, _, _ = socket.recv_fds(ours, 200, 1)
        os.waitpid(child, 0)
    assert fds, data.decode()
    return socket.socket(fileno=fds[0])


def _hand_over(
    to: socket.socket,
    path: Path | str,
    uid: int,
    gid: int,
    groups: Sequence[int],
    poses_as_root: bool,
) -> None:
    try:
        os.setgroups(list(groups))
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        if poses_as_root:
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_DUMPABLE, 1)  # or its files in /proc would be root's
            assert libc.unshare(CLONE_NEWUSER) == 0
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            assert os.geteuid() == 0
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            socket.send_fds(to, [b"done"], [sock.fileno()])
    except BaseException as err:
        to.send(repr(err).encode())
    finally:
        os._exit(0)
