"""Whether a runner is well enough for somebody to vouch for it."""

from runnerd.runner import Runner


class VitalSigns:
    """Looks at a runner now and then; what has happened since the last time matters."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._n_beats = -1  # of the decode loop, at the last look that found it well

    def doubt(self) -> str:
        """Return why the runner may not be well; empty if it is.

        It is while no step, pass or encode takes longer than it may, and the decode loop has
        ended one since the last time, has one in progress, or has nothing to do.
        """
        watches, loop = self._runner.watches, self._runner.loop
        if watches.stalled:
            return f"{watches.stalled} in progress for {watches.age_s:.1f} s"
        if loop is None or self._runner.state in ("stopped", "failed"):
            return ""  # there is no decode loop to go round, and whoever ends us has a deadline
        has_moved = loop.pulse.n_beats != self._n_beats
        if not (has_moved or loop.pulse.is_resting or watches.step.is_running):
            return "the decode loop does not go on"
        self._n_beats = loop.pulse.n_beats
        return ""
