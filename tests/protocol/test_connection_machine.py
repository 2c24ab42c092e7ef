"""Both ends of a connection with bytes under way: messages cross, and come in any pieces."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runnerd_protocol.connection import Rejection
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    GetModel,
    MemoryReport,
    Model,
    Plan,
    Status,
    Subscribe,
)
from tests.protocol.builders import SMALL_MEMORY, open_pair

Request = Generate | Plan | Subscribe | GetModel
Answer = Accepted | Delta | Finished | Failed | MemoryReport | Model | Status

ids = st.integers(0, 3)
sizes = st.integers(1, 200)


class ConnectionMachine(RuleBasedStateMachine):
    """A client that asks and cancels, a daemon that answers, and the bytes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.client, self.server = open_pair()
        self.to_server, self.to_client = bytearray(), bytearray()
        self.said: deque[Answer] = deque()  # by the daemon, and not heard yet
        self.asked: dict[int, Request] = {}  # as the daemon has heard
        self.accepted: set[int] = set()
        self.n_text_bytes: dict[int, int] = {}

    @rule(
        request=st.builds(Generate, ids, st.just("hi"))
        | st.builds(Plan, ids)
        | st.builds(Subscribe, ids)
        | st.builds(GetModel, ids)
    )
    def ask(self, request: Request) -> None:
        if not self.client.is_active(request.request_id):
            self.to_server += self.client.send(request)

    @rule(request_id=ids)
    def cancel(self, request_id: int) -> None:
        self.to_server += self.client.send(Cancel(request_id))

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 3), text=st.text(max_size=5), fails=st.booleans())
    def answer(self, which: int, text: str, fails: bool) -> None:
        request_id = list(self.asked)[which % len(self.asked)]
        if fails:
            self.say(Failed(request_id, "internal", text), is_last=True)
            return
        match self.asked[request_id]:
            case Plan():
                self.say(MemoryReport(request_id, SMALL_MEMORY), is_last=True)
            case GetModel():
                self.say(Model(request_id, text, 1, 1, 1), is_last=True)
            case Subscribe():
                self.say(Status(request_id, "ready", last=not text), is_last=not text)
            case _ if request_id in self.accepted:
                self.say(Delta(request_id, text), is_last=False)
            case _:
                self.accepted.add(request_id)
                self.n_text_bytes[request_id] = 0
                self.say(Accepted(request_id), is_last=False)

    @precondition(lambda self: self.accepted)
    @rule(which=st.integers(0, 3))
    def finish(self, which: int) -> None:
        request_id = sorted(self.accepted)[which % len(self.accepted)]
        n_text_bytes = self.n_text_bytes[request_id]
        self.say(Finished(request_id, "stop", n_text_bytes=n_text_bytes), is_last=True)

    def say(self, message: Answer, *, is_last: bool) -> None:
        self.to_client += self.server.send(message)
        self.said.append(message)
        if isinstance(message, Delta):
            self.n_text_bytes[message.request_id] += len(message.text.encode())
        if is_last:
            del self.asked[message.request_id]
            self.accepted.discard(message.request_id)

    @rule(n_bytes=sizes)
    def deliver_to_the_daemon(self, n_bytes: int) -> None:
        data = bytes(self.to_server[:n_bytes])
        del self.to_server[:n_bytes]
        for event in self.server.receive(data):
            assert not isinstance(event, Rejection)
            if isinstance(event, Cancel):
                assert event.request_id in self.asked
                continue
            assert isinstance(event, Request)
            assert event.request_id not in self.asked
            self.asked[event.request_id] = event

    @rule(n_bytes=sizes)
    def deliver_to_the_client(self, n_bytes: int) -> None:
        data = bytes(self.to_client[:n_bytes])
        del self.to_client[:n_bytes]
        for message in self.client.receive(data):
            assert message == self.said.popleft()

    @invariant()
    def the_daemon_owes_what_it_has_heard(self) -> None:
        assert set(self.server.active) == set(self.asked)

    @invariant()
    def the_client_waits_for_whatever_is_owed(self) -> None:
        assert set(self.server.active) <= set(self.client.active)

    def teardown(self) -> None:
        self.deliver_to_the_daemon(len(self.to_server) or 1)
        for request_id in list(self.asked):
            self.say(Failed(request_id, "shutting_down", ""), is_last=True)
        self.deliver_to_the_client(len(self.to_client) or 1)
        assert not self.client.active
        assert not self.said
        self.client.receive_eof()
        assert self.server.receive_eof() is None


TestConnectionMachine = ConnectionMachine.TestCase
TestConnectionMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=60)
