"""The messages between processes and the ZeroMQ sockets that carry them; and a server's listeners.

Clients of a server have its address, key and certificates here. Knows which process may send which message, not why: no
scheduler, no text, no HTTP.
"""
