"""Images beside text, together, again, and by the thousand."""
