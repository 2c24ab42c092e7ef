"""What a client says that we have done wrong: counted, and told of in two lines at most."""

import structlog

from runnerd_protocol.errors import PROTOCOL_ERROR_CODES
from runnerd_protocol.messages import ProtocolError

log = structlog.get_logger()


class Complaints:
    """Complaints of one connection. Their texts are not logged: they could quote anything."""

    def __init__(self) -> None:
        self._n = 0

    def note(self, complaint: ProtocolError) -> None:
        """Log the first one; count the others."""
        self._n += 1
        if self._n > 1:
            return
        code = complaint.code if complaint.code in PROTOCOL_ERROR_CODES else "other"
        n_chars = len(complaint.message)
        log.warning("client.complained", code=code, fatal=complaint.fatal, n_chars=n_chars)

    def sum_up(self) -> None:
        """Log how many there were after the first one, if any."""
        if self._n > 1:
            log.warning("client.kept_complaining", n_more=self._n - 1)
