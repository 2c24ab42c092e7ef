"""What a daemon holds for requests, and that nothing of it is left behind."""

from tests.daemon import Daemon


def held(daemon: Daemon) -> dict[str, int]:
    """Return what requests hold, by name: all zero when there are none."""
    runner = daemon.runner
    return {
        "places": runner.n_waiting,
        "sequences": 0 if runner.batcher is None else len(runner.batcher.seq_ids),
        "intake bytes": runner.intake.n_bytes,
        "upload bytes": runner.uploads.n_bytes,
        "file bytes": runner.pictures.n_bytes_in_use,
    }


async def check_holds_nothing(daemon: Daemon) -> None:
    """Assert that the daemon is soon as if nobody had ever asked."""
    await daemon.until(lambda: not any(held(daemon).values()))
    await daemon.has_all_slots()
    await daemon.until(lambda: not any(held(daemon).values()))
