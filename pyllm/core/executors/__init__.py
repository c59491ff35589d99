"""Executors of plans: worker processes on this machine or on a Ray cluster, or the core's own process.

Knows no client, no request and no scheduling.
"""
