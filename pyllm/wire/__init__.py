"""The messages between processes, and the ZeroMQ sockets that carry them.

Knows which process may send which message, not why: no scheduler, no text, no HTTP.
"""
