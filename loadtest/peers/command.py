"""`python -m loadtest peers`."""

import signal

import typer

from loadtest.console import FAILED, tell
from loadtest.exchange import PeerUnavailable
from loadtest.peers.building import build_peers
from loadtest.peers.places import places


def peers() -> None:
    """Build the systems that `compare` measures beside ours, into a cache folder."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        build_peers(places(), tell)
    except PeerUnavailable as err:
        tell(str(err))
        raise typer.Exit(FAILED) from err
