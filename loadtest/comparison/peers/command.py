"""`python -m loadtest peers`."""

import typer

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.peers.building import build_peers
from loadtest.comparison.peers.places import places
from loadtest.console import FAILED, heed_sigterm, tell


def peers_command() -> None:
    """Build the systems that `compare` measures beside ours, into a cache folder."""
    heed_sigterm()
    try:
        build_peers(places(), tell)
    except PeerUnavailable as err:
        tell(str(err))
        raise typer.Exit(FAILED) from err
