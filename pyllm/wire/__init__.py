"""The messages between processes and the ZeroMQ sockets that carry them; listeners of a server, and TLS of its clients.

Knows which process may send which message, not why: no scheduler, no text, no HTTP.
"""
