"""The interval of heartbeats between processes, and the longest silence. Knows no transport."""

HEARTBEAT_INTERVAL = 0.5  # seconds
# Seconds without a heartbeat after which its parent, its children and its clients consider a process gone.
SILENCE = 2.5
