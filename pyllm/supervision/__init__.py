"""Child processes: started, watched, replaced when they die, and ended in order; records of each crash.

Knows no roles of processes except that workers are forked, only ids of requests, and no model.
"""
