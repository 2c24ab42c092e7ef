"""Embeddings: many in one request, one by one, and beside generation."""
