"""The core on modelled steps, at a size that no engine here can run."""
