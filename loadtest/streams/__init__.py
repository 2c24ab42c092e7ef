"""A load of equal streams, on a daemon or on the bare decode loop, and how far they are apart."""
