"""Structured outputs: grammars compiled within limits, and the tokens that they allow next.

Knows slots, but neither requests nor their text.
"""
