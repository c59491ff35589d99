"""Whole servers from outside: start-up, recovery, memory under load; and the clients that load them.

Knows nothing of the engine's inside, and no other engine.
"""
