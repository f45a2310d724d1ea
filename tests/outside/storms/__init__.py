"""Storms: real servers under everything that fails, and a judge of what they leave (docs/design/simulate.md).

storm.py          lets it blow: clients, collectors and erasures, faults, then a look and the judge
installations.py  what it blows over; disk.py, replicated.py and proxy.py are what fails of it
clients.py        what clients do; model.py: what their places may hold after that
faults.py         the schedule of faults, and what carries it out
collectors.py     collections and erasures, as commands
looking.py        what is left, written down; judging.py: what of that must not be
"""
