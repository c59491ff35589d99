"""Products with weights on a GPU: floats in a fixed order, and each quantised format.

Knows neither layers nor files.
"""
