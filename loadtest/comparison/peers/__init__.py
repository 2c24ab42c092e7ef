"""Systems that are measured side by side, each behind the same few calls.

`python -m loadtest peers` builds those that need it; the adapters say how `Setup` and `Ask` are
put to each of them.
"""

from collections.abc import Mapping
from functools import partial

from loadtest.comparison.exchange import StartPeer


def known() -> Mapping[str, StartPeer]:
    """Return how to start each system, by the name that it has in reports."""
    # They load llama.cpp and HTTP, which other commands have no use for.
    from loadtest.comparison.peers.llama_server import start_llama_server
    from loadtest.comparison.peers.ours import start_ours
    from loadtest.comparison.peers.python_server import start_python_server

    return {
        "ours": start_ours,
        "llama-server": start_llama_server,
        "llama-server-b512": partial(start_llama_server, name="llama-server-b512", n_batch=512),
        "python-server": start_python_server,
    }
