"""The commands of the command line, one module each: `add_arguments(parser)` and `run(options)`.

A command's module is imported when its command runs. Knows neither HTTP nor the engine: commands call packages that do.
"""
