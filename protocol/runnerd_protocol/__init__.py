"""The wire protocol of runnerd: frames, messages and their legal order, without I/O."""
