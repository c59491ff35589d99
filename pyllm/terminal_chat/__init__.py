"""Conversations in a terminal: sources of answers, their display, the commands of a chat, and completions.

Knows no parts of the engine: it is a client of a server, or of an `AsyncEngine`.
"""
