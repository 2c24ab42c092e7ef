"""What runnerd and systemd have to tell each other: sockets, states, watchdog."""
