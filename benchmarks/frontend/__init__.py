"""The frontend: the API process over a core that samples at a fixed rate, and texts in and out of it."""
