"""A core's handling of workers that die, hang or fail: recovery, quarantine, crash reports.

Knows no sockets and no text.
"""
