"""The scheduler: values in, values out. No I/O, clock, thread or log."""
