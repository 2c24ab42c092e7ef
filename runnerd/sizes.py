"""How much is done at once in the event loop."""

HASHED_AT_ONCE = 2**17  # bytes of a file whose SHA-256 takes less than a millisecond
