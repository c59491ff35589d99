"""Parsers of streamed answers: reasoning, tool calls and text, each in the form that a model family writes.

Know characters only: no tokens, no API.
"""
