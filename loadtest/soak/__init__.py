"""A daemon that is asked for everything for a long time, and what is left behind."""
