"""Deterministic simulation: the core's own code on simulated ports, scheduled by a seed, by all schedules, or by a
property-test library. See docs/design/simulate.md."""

from explorer.actors import Actor, Ending, Violation
from explorer.automata import NotDeterministic
from explorer.disk import Disk
from explorer.effects import Effect, Fate, Mark, Step, format_trace
from explorer.exploring import Budget, Explored, TooManyStates, explore
from explorer.operations import Ended, Operation, Record
from explorer.scheduling import NO_FAULTS, Drawn, Faults, Replayed, Run, Seeded, Simulation, all_schedules, run_seed
from sim.ports.scene import Program, Scene, run_alone

from .ports.ports import DAWN_MS, SimObjectStore, SimPorts, SimStore
