"""Under a real systemd: what the journal has of a daemon, by its fields."""

import signal

from runnerd.blocking import BlockingClient
from tests.e2e.systemd_lab import Units


def test_a_request_is_an_entry_with_a_field_for_each_fact(units: Units) -> None:
    instance = units()
    instance.systemctl("start")
    with BlockingClient(instance.path) as client:
        client.complete("Xanthippe", max_tokens=3)
    instance.systemctl("stop")
    entries = instance.lab.journal(instance.service)
    (entry,) = [each for each in entries if each.get("RUNNERD_EVENT") == "request.finished"]
    assert (entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]) == ("6", "runnerd")
    assert (entry["_TRANSPORT"], entry["_SYSTEMD_UNIT"]) == ("journal", instance.service)
    assert (entry["RUNNERD_REASON"], entry["RUNNERD_N_GENERATED"]) == ("length", "3")
    assert float(entry["RUNNERD_TOTAL_MS"]) > 0
    assert entry["MESSAGE"].startswith("request.finished connection=1 request_id=1 kind=generate")
    assert "Xanthippe" not in str(entries)


def test_the_last_native_words_of_a_daemon_belong_to_its_unit(units: Units) -> None:
    instance = units("Restart=no")
    instance.systemctl("start")
    with instance.lab.path(f"/proc/{instance.show('MainPID')}/fd/2").open("wb") as stderr:
        stderr.write(b"GGML_ASSERT(x) failed\n")
    instance.kill(signal.SIGKILL.name)
    instance.until("ActiveState", "failed")
    entries = instance.lab.journal(instance.service)
    (entry,) = [each for each in entries if each.get("RUNNERD_EVENT") == "native.line"]
    assert (entry["PRIORITY"], entry["RUNNERD_TEXT"]) == ("3", "GGML_ASSERT(x) failed")


def test_the_first_lines_of_a_daemon_that_ends_at_once_belong_to_its_unit(units: Units) -> None:
    instance = units(settings={"model": "no such option"})
    instance.systemctl("start", may_fail=True)
    entries = instance.lab.journal(instance.service)
    events = [each.get("RUNNERD_EVENT") for each in entries]
    assert "daemon.load_failed" in events
    assert events.count("daemon.stopped") == events.count("daemon.starting") >= 1
