"""Running a scene live: real coroutines on one disk, in the order that a chooser picks.

The chooser decides the search: a seed (`Seeded`), a property-test library that shrinks (`Drawn`), a list of choices
(`Replayed`), and through it every schedule one by one (`all_schedules`; for worlds beyond a few thousand schedules see
`exploring.py`). A run is a function of scene and choices: equal seeds give equal traces, in any process.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from .actors import Actor, Ending, Life, Ports, Scene, Strand, Violation, apply_checked, prepared, run_to_end
from .disk import Disk
from .effects import CRASH, ERASE, LOCAL, LOSABLE, WRITES, Effect, Fate, Mark, Step, format_trace
from .footprints import Footprints
from .operations import Record

_FAULTS = frozenset(Fate) - {Fate.DONE, Fate.LATE}
_RAW = {Fate.LOST: Mark.UNKNOWN, Fate.VAIN: Mark.UNKNOWN, Fate.REFUSED: Mark.REFUSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances of each fault at a step.

    `late`: a crash while a write is under way, which is done later. `echo`: a delete of objects is done twice. `delay`
    puts the actor to sleep for up to `delay_steps` steps of the others; `clock_jump` moves its clock by up to
    `clock_jump_ms` either way. `crashes_max` bounds the crashes of a run.
    """

    refuse: float = 0.0
    lose_answer: float = 0.0
    lose_request: float = 0.0
    crash: float = 0.0
    late: float = 0.0
    delay: float = 0.0
    echo: float = 0.0
    clock_jump: float = 0.0
    delay_steps: int = 40
    clock_jump_ms: int = 7_200_000
    crashes_max: int = 3


NO_FAULTS = Faults()


def can_strike(fault: Fate, what: Effect) -> bool:
    """Return whether this fault can come at this effect: a read has no answer of unknown outcome."""
    match fault:
        case Fate.CRASHED:
            return True
        case Fate.REFUSED:
            return what[0] not in LOCAL
        case Fate.LATE_WRITE:
            return what[0] in WRITES
        case Fate.LOST | Fate.VAIN:
            return what[0] in LOSABLE
        case Fate.ECHO:
            return bool(what[0] == ERASE)
    return False


_LANDS_ONE_IN = 12
"""At how many of the steps a write that is under way is done."""


class Chooser(Protocol):
    """Choices are numbers below a bound; 0 is the dullest, so that shrinking goes there."""

    def pick(self, count: int) -> int:
        """Pick one of the moves. Called only where there is more than one."""
        ...

    def fault(self, what: Effect) -> Fate | str | None:
        """Return a fate other than done, "delay" or "jump" for this step."""
        ...

    def amount(self, bound: int) -> int:
        """Pick an amount from 0 to before `bound`."""
        ...


class Seeded:
    """Half of the seeds pick uniformly; the other half give actors priorities that change now and then, which finds
    what needs one actor to sleep through much of another's work."""

    __slots__ = ("_faults", "_hurry", "_last", "_random", "_total", "crashes")

    def __init__(self, seed: int, faults: Faults = NO_FAULTS) -> None:
        self._random = random.Random(seed)
        self._faults = faults
        self._hurry = self._random.choice((0.0, 0.0, 0.7, 0.9))
        self._last = 0
        crashes = faults.crash + faults.late
        answers = faults.refuse + faults.lose_answer + faults.lose_request
        self._total = crashes + answers + faults.delay + faults.echo + faults.clock_jump
        self.crashes = 0

    def pick(self, count: int) -> int:
        if self._hurry and self._random.random() < self._hurry:
            return min(self._last, count - 1)
        self._last = int(self._random.random() * count)
        return self._last

    def fault(self, what: Effect) -> Fate | str | None:
        roll = self._random.random()
        if roll >= self._total:
            return None
        faults = self._faults
        table: tuple[tuple[float, Fate | str], ...] = (
            (faults.refuse, Fate.REFUSED),
            (faults.lose_answer, Fate.LOST),
            (faults.lose_request, Fate.VAIN),
            (faults.crash, Fate.CRASHED),
            (faults.late, Fate.LATE_WRITE),
            (faults.delay, "delay"),
            (faults.echo, Fate.ECHO),
        )
        for share, fate in table:
            if roll < share:
                if isinstance(fate, str):
                    return fate
                is_crash = fate in (Fate.CRASHED, Fate.LATE_WRITE)
                is_too_many = is_crash and self.crashes >= faults.crashes_max
                self.crashes += is_crash
                return fate if can_strike(fate, what) and not is_too_many else None
            roll -= share
        return "jump"

    def amount(self, bound: int) -> int:
        return int(self._random.random() * bound)


class Drawn:
    """Choices drawn from Hypothesis: `Drawn(lambda bound: data.draw(st.integers(0, bound - 1)))`.

    At most `faults_max` faults; whether there is one is itself drawn, so that a shrunk failure has no needless one.
    """

    __slots__ = ("_draw", "_faults_left")

    def __init__(self, draw: Callable[[int], int], *, faults_max: int = 0) -> None:
        self._draw = draw
        self._faults_left = faults_max

    def pick(self, count: int) -> int:
        return self._draw(count)

    def fault(self, what: Effect) -> Fate | str | None:
        if not self._faults_left or self._draw(8) != 7:
            return None
        faults = (Fate.LOST, Fate.VAIN, Fate.LATE_WRITE, Fate.ECHO, Fate.REFUSED)
        possible: list[Fate | str] = [
            Fate.CRASHED,
            "delay",
            "jump",
            *(fate for fate in faults if can_strike(fate, what)),
        ]
        self._faults_left -= 1
        return possible[self._draw(len(possible))]

    def amount(self, bound: int) -> int:
        return self._draw(bound)


class Dull:
    """Chooses what is dullest: the first move, and no fault."""

    __slots__ = ()

    def pick(self, count: int) -> int:  # noqa: ARG002  # the signature of the port
        return 0

    def fault(self, what: Effect) -> Fate | str | None:  # noqa: ARG002  # the signature of the port
        return None

    def amount(self, bound: int) -> int:  # noqa: ARG002  # the signature of the port
        return 0


class Replayed(Dull):
    """Takes the choices given, then always the first move. Notes how many moves there were at each choice."""

    __slots__ = ("choices", "counts")

    def __init__(self, choices: Sequence[int] = ()) -> None:
        self.choices = list(choices)
        self.counts: list[int] = []

    def pick(self, count: int) -> int:
        position = len(self.counts)
        self.counts.append(count)
        if position == len(self.choices):
            self.choices.append(0)
        return self.choices[position]


@dataclass(slots=True)
class Run:
    ending: Ending
    trace: list[Step] = field(default_factory=list)
    steps: int = 0
    faults: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault happened."""


Schedule: TypeAlias = Sequence[tuple[str, Fate]]
"""The actors, with their strands, in the order in which they move, and what becomes of each step. No name: a late
write is done."""
Move: TypeAlias = tuple[Life, Strand, Fate]
Start: TypeAlias = tuple[Disk, dict[str, Record]]
"""The disk as the actors of a scene find it, and what was done to get there."""


class Simulation:
    """One run of a scene. `play` may be called once."""

    def __init__(
        self,
        scene: Scene,
        chooser: Chooser,
        *,
        faults: Faults = NO_FAULTS,
        seed: int = 0,
        traced: bool = True,
        start: Start | None = None,
    ) -> None:
        self.scene = scene
        self.chooser = chooser
        self.faults = faults
        self.seed = seed
        self._first, self._prepared = start or prepared(scene, seed)
        self.disk = self._first.fork()
        self.trace: list[Step] | None = [] if traced else None
        self.steps = 0
        self.faults_met: Counter[str] = Counter()
        self.crashed: set[str] = set()
        self._actors = {actor.name: actor for actor in scene.actors}
        self._lives: dict[str, Life] = {}
        self._past: list[Ports] = []
        self._asleep: dict[str, int] = {}
        self._under_way: list[Effect] = []
        """Writes of those who crashed."""
        self._before: dict[str, frozenset[str]] = {}
        self._ended = frozenset(self._prepared)

    def play(self) -> Run:
        """Run to the end and check it.

        Raises:
            Violation: with the trace, if traced.
        """
        try:
            with self._started():
                self._run()
                ending = Ending(self.disk, self._records(), frozenset(self.crashed))
                Endings(self.scene).check(ending)
        except Exception as error:
            raise Violation(self._explain(error)) from error
        return Run(ending, self.trace or [], self.steps, self.faults_met.total(), self.faults_met)

    def run_unchecked(self) -> list[Step]:
        """Run to the end, or to the first error, and return the trace."""
        # Whatever goes wrong, a search gets there too.
        with suppress(Exception), self._started():
            self._run()
        return self.trace or []

    @contextmanager
    def _started(self) -> Iterator[None]:
        try:
            for actor in self.scene.actors:
                self._start(actor)
            yield
        finally:
            for life in self._lives.values():
                life.close()

    def _start(self, actor: Actor, *, life: int = 0) -> None:
        ports = self.scene.ports(actor.name, seed=self.seed, life=life, before=self._first)
        self._past.append(ports)
        program = actor.program if life == 0 or actor.restart is None else actor.restart
        self._lives[actor.name] = Life(actor.name, program, ports)

    def _run(self) -> None:
        moves = {name: life.moves() for name, life in self._lives.items()}
        while True:
            awake = [
                (self._lives[name], strand, fate)
                for name, found in moves.items()
                if name not in self._asleep
                for strand, fate in found
                if strand.effect[0] != "until" or self.disk.apply(strand.effect) is None
            ]
            if not awake and not self._asleep:
                break
            if self._asleep:
                self._let_time_pass(bool(awake))
            if not awake:
                continue
            if self._under_way and self._lands():
                self._land()
            life, strand, fate = self._picked(awake)
            self._step(life, strand, fate)
            moves[life.name] = self._lives[life.name].moves()
        while self._under_way:
            self._land()
        waiting = {name: life for name, life in self._lives.items() if life.pending and name not in self.crashed}
        # An actor that waits for a dead one waits no longer than a clock says; that one's work is left undone.
        if stuck := [name for name, life in waiting.items() if not life.is_until_others()]:
            raise Violation(f"waits for ever: {', '.join(stuck)}")

    def _lands(self) -> bool:
        return not self.chooser.amount(_LANDS_ONE_IN)

    def _picked(self, awake: Sequence[Move]) -> Move:
        return awake[self.chooser.pick(len(awake)) if len(awake) > 1 else 0]

    def _land(self) -> None:
        what = self._under_way.pop(0)
        if self.trace is not None:
            self.trace.append(Step("", "", what, Fate.DONE))
        apply_checked(self.disk, what, self.scene.step_checks)

    def _let_time_pass(self, others_move: bool) -> None:
        """Take a step off every sleep; where no one else moves, all wake."""
        self._asleep = {name: left - 1 for name, left in self._asleep.items() if left > 1} if others_move else {}

    def _step(self, life: Life, strand: Strand, fate: Fate) -> None:
        what = strand.effect
        fault = None if what[0] == "until" else self.chooser.fault(what)
        if fault is not None and not (fault == "jump" and self.scene.clocks_agree):
            self.faults_met[fault.value if isinstance(fault, Fate) else fault] += 1
            if fault is Fate.CRASHED or fault is Fate.LATE_WRITE:
                self._crash(life, strand, fault)
                return
            if fault == "delay":
                self._asleep[life.name] = 1 + self.chooser.amount(self.faults.delay_steps)
                return
            if fault == "jump":
                reach = self.faults.clock_jump_ms
                life.ports.clock.ms += self.chooser.amount(2 * reach + 1) - reach
            else:
                assert isinstance(fault, Fate)
                fate = fault
        self.steps += 1
        if self.trace is not None:
            self.trace.append(Step(life.name, strand.name, what, fate))
        self._carry_out(life, strand, what, fate)

    def _carry_out(self, life: Life, strand: Strand, what: Effect, fate: Fate) -> None:
        operations = life.ports.operations
        for name in operations.take_opened():
            self._before[name] = self._ended
        if what[0] in LOCAL:
            raw = life.local(what, fate)
        else:
            is_done = fate in (Fate.DONE, Fate.LOST, Fate.ECHO)
            if fate is Fate.ECHO:
                self._under_way.append(what)
            raw = apply_checked(self.disk, what, self.scene.step_checks) if is_done else None
            raw = _RAW.get(fate, raw)
        life.resume(strand, raw)
        if ended := operations.take_ended():
            for name in operations.take_opened():
                if name in ended:
                    self._before[name] = self._ended
                else:
                    operations.opening.append(name)
            self._ended = self._ended.union(ended)

    def _crash(self, life: Life, strand: Strand, fate: Fate) -> None:
        if fate is Fate.LATE_WRITE:
            self._under_way.append(strand.effect)
        if self.trace is not None:
            what = strand.effect if fate is Fate.LATE_WRITE else CRASH
            self.trace.append(Step(life.name, strand.name, what, fate))
        actor = self._actors[life.name]
        life.close()
        if actor.restart is None or life.ports.life:
            self.crashed.add(life.name)
        else:
            self._start(actor, life=life.ports.life + 1)

    def _records(self) -> dict[str, Record]:
        return self._prepared | {
            name: Record(operation, ports.operations.ended.get(name), self._before.get(name))
            for ports in self._past
            for name, operation in ports.operations.asked.items()
        }

    def _explain(self, error: Exception) -> str:
        head = f"{self.scene.name}, seed {self.seed}: {type(error).__name__}: {error}"
        return head if self.trace is None else f"{head}\n{format_trace(self.trace)}"


class Following(Simulation, Dull):
    """Takes the steps of a schedule, those that there are; after them always the first move.

    Where the source moved on, a fault may meet a step that it cannot strike. Then that step is taken without it.
    """

    def __init__(self, scene: Scene, schedule: Schedule) -> None:
        super().__init__(scene, self)
        self._left = deque(schedule)
        self._fate: Fate | None = None

    def _lands(self) -> bool:
        if not self._left or self._left[0][0]:
            return False
        self._left.popleft()
        return True

    def _picked(self, awake: Sequence[Move]) -> Move:
        self._fate = None
        while self._left:
            name, fate = self._left.popleft()
            for move in awake:
                if move[0].name + move[1].name == name:
                    self._fate = fate if fate in _FAULTS else None
                    return move
        return awake[0]

    def fault(self, what: Effect) -> Fate | str | None:
        return self._fate if self._fate is not None and can_strike(self._fate, what) else None


class Endings:
    """Ends of many schedules of one scene, many of which leave the same disk: it is tidied once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._tidied: dict[int, tuple[Disk, Disk]] = {}

    def check(self, ending: Ending) -> None:
        """Check the end of a schedule; where the scene tidies, check it again afterwards.

        Raises:
            Violation: a check failed.
        """
        for check in self._scene.checks:
            check(ending)
        if self._scene.tidy is not None:
            tidied = Ending(self._tidy(ending.disk), ending.records, ending.crashed)
            for check in (*self._scene.checks, *self._scene.tidy_checks):
                check(tidied)

    def _tidy(self, disk: Disk) -> Disk:
        known = self._tidied.get(id(disk))
        if known is None:
            assert self._scene.tidy is not None
            tidied = disk.fork()
            ports = self._scene.ports_alone("tidy", seed=0, disk=tidied)
            run_to_end(self._scene.tidy, tidied, ports, name="tidy")
            known = self._tidied[id(disk)] = disk, tidied
        return known[1]


class Bursts(Simulation):
    """One run in which each actor takes a few steps or very many before another one does.

    Most bugs of a run need one actor to sleep through nearly all of another's work, at one place: seeds that choose
    anew for each step seldom do that, and a search of all schedules comes there late.

    With `footprints`, to which each run adds what it saw, only steps count that another actor can notice, and turns
    change just before one. `faults_max`: so often may the actor whose turn ends die there, or a write of its fail.
    """

    def __init__(
        self,
        scene: Scene,
        seed: int,
        *,
        footprints: Footprints | None = None,
        faults_max: int = 0,
        start: Start | None = None,
    ) -> None:
        super().__init__(scene, self, start=start)
        self._random = random.Random(seed)
        self._footprints = footprints
        self._indices = {actor.name: index for index, actor in enumerate(scene.actors)}
        self._doublings = _DOUBLINGS if footprints is None else _DOUBLINGS_NOTICED
        self._moving = ""
        self._left = 0
        self._faults_left = faults_max
        self._is_failing = False

    def _picked(self, awake: Sequence[Move]) -> Move:
        own = [move for move in awake if move[0].name == self._moving]
        if not own or (self._left <= 0 and self._counts(own)):
            if own and self._faults_left and self._random.random() < _FAILS_AT_TURN:
                self._faults_left -= 1
                self._is_failing = True
                return self._random.choice(own)
            others = sorted({move[0].name for move in awake if move[0].name != self._moving})
            self._moving = self._random.choice(others) if others else self._moving
            self._left = int(2 ** self._random.uniform(0, self._doublings))
            own = [move for move in awake if move[0].name == self._moving]
        self._left -= self._counts(own)
        return own[0] if len(own) == 1 else self._random.choice(own)

    def _counts(self, own: Sequence[Move]) -> bool:
        if self._footprints is None:
            return True
        return any(self._footprints.is_noticed(self._indices[life.name], one.effect) for life, one, _ in own)

    def _carry_out(self, life: Life, strand: Strand, what: Effect, fate: Fate) -> None:
        if self._footprints is not None:
            self._footprints.note(self._indices[life.name], what)
        super()._carry_out(life, strand, what, fate)

    def pick(self, count: int) -> int:
        return int(self._random.random() * count)

    def fault(self, what: Effect) -> Fate | str | None:
        if not self._is_failing:
            return None
        self._is_failing = False
        faults = (Fate.CRASHED, Fate.LATE_WRITE, Fate.LOST, Fate.VAIN, Fate.ECHO)
        return self._random.choice([fate for fate in faults if can_strike(fate, what)])

    def amount(self, bound: int) -> int:
        return int(self._random.random() * bound)


_DOUBLINGS: Final = 7
"""Of 1 to 128 steps, short ones as often as long ones: a run takes about 60."""
_DOUBLINGS_NOTICED: Final = 5
_FAILS_AT_TURN: Final = 0.3


def run_seed(scene: Scene, seed: int, *, faults: Faults = NO_FAULTS, traced: bool = False) -> Run:
    """One run. An untraced run that fails is run again for its trace.

    Raises:
        Violation: with seed and trace.
    """
    try:
        return Simulation(scene, Seeded(seed, faults), faults=faults, seed=seed, traced=traced).play()
    except Violation:
        if traced:
            raise
    return run_seed(scene, seed, faults=faults, traced=True)


def all_schedules(scene: Scene) -> Iterator[Run]:
    """Yield every schedule without faults: depth first, each by replay of the choices that lead to it."""
    choices: list[int] | None = []
    while choices is not None:
        chooser = Replayed(choices)
        yield Simulation(scene, chooser).play()
        choices = _next(chooser.choices, chooser.counts)


def _next(choices: list[int], counts: list[int]) -> list[int] | None:
    for position in range(len(counts) - 1, -1, -1):
        if choices[position] + 1 < counts[position]:
            return [*choices[:position], choices[position] + 1]
    return None
