"""The messages between processes and the ZeroMQ sockets that carry them; and a server's listeners.

Commands that talk to a server have its address, key, certificates and the HTTP client here. Knows which process may
send which message, not why: no scheduler, no text.
"""
