"""The life of one HTTP request in the engine: admitted, submitted, measured, ended.

Knows no API's fields and no shape of an answer.
"""
