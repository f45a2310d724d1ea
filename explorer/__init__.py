"""Explore what actors that share a disk can come to: coroutines, run by hand, one effect at a time.

effects.py, disk.py       what an actor asks for, as data; what carries it out
actors.py, operations.py  scenes of actors, and what became of each of their operations
scheduling.py             one run, in the order that a chooser picks: a seed, a property-test library, a list
exploring.py              all runs: automata.py numbers what an actor can do, machine.py lets them act on one disk,
                          levels.py and tables.py hold the states, alone.py asks whether an actor ends by itself
memory.py                 when two histories of an actor have one future
footprints.py, futures.py which orders need not be tried

Of Lakebed it knows the errors that are answers (`lakebed.base`), and two names: of operations whose order no client
can rely on (`UNORDERED`), and of the records of runs.
"""
