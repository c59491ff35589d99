"""Conversations with tools, independent of the API: the request that each becomes, and the parsing of its answer.

Knows no API's fields and no HTTP.
"""
