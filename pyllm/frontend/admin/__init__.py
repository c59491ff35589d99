"""The routes below `/admin`, for keys of the role admin: they show or change more than the caller's own requests.

Knows neither how keys are checked nor what the core does with a call.
"""
