"""Whole servers from outside: start-up, recovery, memory under load; and the clients that load them.

Knows neither the inside of the engine nor other engines.
"""
