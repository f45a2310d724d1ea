"""Histories from outside: record the calls of clients of real servers under `kill -9`, then judge the recording.

`events.py` holds a recording and `recording.py` makes one. `lists.py` judges logs of branches, `registers.py` staged
objects, `judging.py` sums up. The judges know nothing of the server; docs/guide/isolation.md says what they look for.
"""
