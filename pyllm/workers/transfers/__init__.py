"""Transfers of KV blocks between a rank's cache and the KV connector: copies, and calls of the connector in a step.

Knows neither the storage of a connector nor the computation of a step.
"""
