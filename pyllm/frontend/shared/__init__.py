"""State that all API processes of a server share: limits, queue, records of answers, stored responses, totals.

Knows no HTTP and no engine. A single API process keeps the state itself; several share a separate process.
"""
