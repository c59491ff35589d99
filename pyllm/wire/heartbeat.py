"""How often processes say that they live, and how long silence may last. Knows no transport."""

HEARTBEAT_INTERVAL = 0.5  # seconds
# Seconds without a sign of life after which a process is taken to be gone, by its parent, its children and its clients.
SILENCE = 2.5
