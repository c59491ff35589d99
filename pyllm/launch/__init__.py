"""Starts a server or an engine: resolves its settings, and creates its processes.

Composes `frontend`, `core` and `workers`, which never import one another. Runs no step and answers no request.
"""
