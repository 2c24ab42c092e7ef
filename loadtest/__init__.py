"""Load tests: a daemon under load, the bare decode loop, and the bars between them."""
