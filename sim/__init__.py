"""Deterministic simulation: the core's own code on simulated ports, scheduled by a seed, by all schedules, or by a
property-test library. See docs/design/simulate.md."""

from .ports.actors import Actor, Ending, Program, Scene, Violation, run_alone
from .ports.disk import Disk
from .ports.effects import Effect, Fate, Mark, Step, format_trace
from .ports.operations import Ended, Operation, Record
from .ports.ports import DAWN_MS, SimObjectStore, SimPorts, SimStore
from .search.automata import NotDeterministic
from .search.exploring import Budget, Explored, TooManyStates, explore
from .search.scheduling import NO_FAULTS, Drawn, Faults, Replayed, Run, Seeded, Simulation, all_schedules, run_seed
