"""The settings of an engine and a server, each a field with its flag and help; the configuration of each process.

Starts no process and reads no checkpoint; `launch` fills in defaults that depend on the model or the machine.
"""
