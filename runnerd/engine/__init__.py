"""Engines: what loads a model and runs steps."""
