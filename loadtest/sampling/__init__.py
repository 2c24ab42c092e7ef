"""What picking tokens costs."""
