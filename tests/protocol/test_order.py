"""The order tables against another description of the same: a grammar for each request."""

import re
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd_protocol.errors import LocalProtocolError, RemoteProtocolError
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    ClientMessage,
    DaemonMessage,
    Delta,
    Detokenize,
    Embed,
    Embeddings,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    MediaWanted,
    MemoryReport,
    Model,
    Plan,
    PromptProgress,
    Status,
    Subscribe,
    Text,
    Tokenize,
    Tokens,
)
from tests.protocol.builders import SMALL_MEMORY, open_pair

N_IDS = 3


def request(letter: str, request_id: int) -> ClientMessage:
    """Return the request that a letter stands for."""
    requests: dict[str, ClientMessage] = {
        "g": Generate(request_id, "hi"),
        "e": Embed(request_id, ["hi"]),
        "k": Tokenize(request_id, "hi"),
        "d": Detokenize(request_id, [1]),
        "s": GetStatus(request_id),
        "w": Subscribe(request_id),
        "m": GetModel(request_id),
        "p": Plan(request_id),
    }
    return requests[letter]


def reply(letter: str, request_id: int) -> DaemonMessage:
    """Return the answer that a letter stands for."""
    replies: dict[str, DaemonMessage] = {
        "A": Accepted(request_id),
        "W": MediaWanted(request_id, []),
        "P": PromptProgress(request_id),
        "D": Delta(request_id, ""),
        "F": Finished(request_id, "stop"),
        "X": Failed(request_id, "internal", ""),
        "V": Embeddings(request_id, [], 1, [], last=False),
        "E": Embeddings(request_id, [], 1, []),
        "K": Tokens(request_id, []),
        "T": Text(request_id, ""),
        "S": Status(request_id, "ready"),
        "L": Status(request_id, "ready", last=True),
        "M": Model(request_id, "", 1, 1, 1),
        "R": MemoryReport(request_id, SMALL_MEMORY),
    }
    return replies[letter]


# All answers that a request may have had at some time, and all that it may have had at its end.
SO_FAR = {
    "g": "X?|A[WPD]*[FX]?",
    "e": "V*[EX]?",
    "k": "[KX]?",
    "d": "[TX]?",
    "s": "[LX]?",
    "w": "S*[LX]?",
    "m": "[MX]?",
    "p": "[RX]?",
}
COMPLETE = {
    "g": "X|A[WPD]*[FX]",
    "e": "V*[EX]",
    "k": "[KX]",
    "d": "[TX]",
    "s": "[LX]",
    "w": "S*[LX]",
    "m": "[MX]",
    "p": "[RX]",
}

steps = st.lists(
    st.tuples(st.sampled_from("gekdswmp" * 2 + "AWPDDFXVEKTSSLMR"), st.integers(0, N_IDS - 1)),
    max_size=40,
)


@settings(deadline=None)
@given(steps=steps)
def test_both_ends_allow_what_the_grammar_allows_and_nothing_else(
    steps: list[tuple[str, int]],
) -> None:
    client, server = open_pair()
    traces: dict[int, str] = {}  # of each active request: its letter and its answers
    for letter, request_id in steps:
        trace = traces.get(request_id)
        if letter.islower():
            message = request(letter, request_id)
            if trace is None:
                assert server.receive(client.send(message)) == [message]
                traces[request_id] = letter
            else:
                with pytest.raises(LocalProtocolError):
                    client.send(message)
            continue
        answer = reply(letter, request_id)
        if trace is None or not re.fullmatch(SO_FAR[trace[0]], trace[1:] + letter):
            with pytest.raises(LocalProtocolError):
                server.send(answer)
            with pytest.raises(RemoteProtocolError):
                deepcopy(client).receive(encode_frame(answer))
            continue
        assert client.receive(server.send(answer)) == [answer]
        traces[request_id] += letter
        if re.fullmatch(COMPLETE[trace[0]], traces[request_id][1:]):
            del traces[request_id]
        assert set(client.active) == set(server.active) == set(traces)
