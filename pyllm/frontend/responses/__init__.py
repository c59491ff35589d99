"""OpenAI's Responses API: routes, items, stored and background responses.

Its routes use the engine through `requests` and `answers`.
"""
