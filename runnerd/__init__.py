"""runnerd: one GGUF model, many clients, one daemon."""

__version__ = "0.1.0"
