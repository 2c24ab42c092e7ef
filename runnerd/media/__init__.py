"""Images of requests: their files, their pixels, and what the model's encoder makes of them."""
