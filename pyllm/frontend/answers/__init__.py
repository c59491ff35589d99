"""The shapes that a generation's answer may have: whole, streamed, resumable, recorded for repeats.

Knows no API: each brings its own answer format.
"""
