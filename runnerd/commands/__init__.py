"""The commands of the command line, a module each; `runnerd.cli` puts them together."""
