"""What a connection has sent of files, and how much of its requests may wait for one."""

import pytest

from runnerd.errors import Overloaded
from runnerd.intake import Intake, Share
from runnerd.uploads import N_HASHES, Uploads

pytestmark = pytest.mark.anyio


async def test_the_files_sent_last_are_remembered_and_the_oldest_forgotten() -> None:
    uploads = Uploads(10, Intake(10), 1.0)
    for number in range(N_HASHES):
        uploads.note(number.to_bytes(32, "big"))
    uploads.note(bytes(32))  # again: so it is not the oldest any more
    uploads.note(b"\xff" * 32)
    assert bytes(32) in uploads
    assert b"\xff" * 32 in uploads
    assert (1).to_bytes(32, "big") not in uploads
    assert (2).to_bytes(32, "big") in uploads


async def test_requests_that_wait_for_files_count_elsewhere_and_not_without_end() -> None:
    intake, whole = Intake(10), Intake(10)
    uploads = Uploads(10, whole, 1.0)
    first, second = Share(intake, 11), Share(intake, 1)
    uploads.set_aside(first)
    assert (intake.n_bytes, whole.n_bytes) == (1, 11)
    with pytest.raises(Overloaded, match="11 bytes") as caught:
        uploads.set_aside(second)
    assert caught.value.details == {"n_bytes_waiting": 11}
    first.give_back()
    uploads.set_aside(second)
    assert (intake.n_bytes, whole.n_bytes) == (0, 1)


async def test_one_request_may_wait_for_a_file_whatever_other_connections_do() -> None:
    whole = Intake(10)
    greedy, modest = Uploads(10, whole, 1.0), Uploads(10, whole, 1.0)
    greedy.set_aside(Share(Intake(10), 11))
    modest.set_aside(Share(Intake(10), 1))
    with pytest.raises(Overloaded):
        modest.set_aside(Share(Intake(10), 1))
