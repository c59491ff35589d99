"""The ops, one module each: the CPU version, the reference in numpy, and the place of the Triton version.

Knows neither layers nor requests.
"""
