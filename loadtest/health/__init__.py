"""How soon a daemon that works says how it is."""
