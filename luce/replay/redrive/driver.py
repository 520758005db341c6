"""Leads a service along a trace, and compares what it does with every record, plan and launch.

Each item of the trace is either done already, by what an earlier one set off, or due: then what it takes is let happen,
a message be handled, a turn end, a step land, and nothing else. What machines do is compared machine by machine, in the
order of the trace; clock times do not count.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from luce.actors.encoder import _precedence
from luce.actors.messages import Plain, ToEncoder
from luce.actors.options import ServiceOptions
from luce.actors.outside import Outside
from luce.actors.request import Request
from luce.actors.service import Service
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.engines.seam import Capabilities
from luce.replay.redrive.arrivals import submissions_of
from luce.replay.redrive.clock import TraceClock
from luce.replay.redrive.deeds import Deed, Who, said, told
from luce.replay.redrive.gates import GatedMailbox, GatedTurn
from luce.replay.redrive.outcome import EndError, Parted, PartError, Redrive
from luce.replay.redrive.plans import RecordedPlans
from luce.replay.redrive.script import Script
from luce.replay.redrive.settings import settings_of
from luce.replay.redrive.world import (
    RecordedDevice,
    RecordedEncoder,
    RecordedMasks,
    RecordedTimers,
    SilentTokenizer,
    recorded_memory,
)
from luce.scheduling.plan import plan
from luce.scheduling.state import Policy
from luce.trace.events import EventReader, EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Encoded, Failed, Header, Landed, Planned

__all__ = ["drive"]

PASSIVE: Final = frozenset({"block", "prefix_entry", "memory"})
"""What stands before the record that it is part of: what the loop does while it handles a message or plans."""
_TIMERS: Final = frozenset({
    "queue.expired", "client.timeout", "deadline.expired", "window.elapsed", "draining.timeout", "abort.timeout",
})  # fmt: skip
_CLIENT: Final = frozenset({"cancel", "client.full", "client.drained"})
_IGNORED: Final = ("fault", "load.failed")


def drive(
    header: Header,
    script: Script,
    items: Iterable[Item],
    policy: Policy | None = None,
    *,
    recorded_plans: bool = False,
) -> Redrive:
    """Go through a trace from its server's start.

    Args:
        script: of the same trace.
        policy: what decides; None: luce's, if that decided in the trace's server.
        recorded_plans: the trace decides, and no policy: what actors make of its plans is compared.

    Raises:
        ConfigError: its header does not say what its server was, or it lacks what would be needed.
        TraceFileError: it cannot be read.
    """
    options, capabilities = settings_of(header, other_policy=policy is not None or recorded_plans)
    redrive = Redrive()
    clock = TraceClock()
    driver = functools.partial(
        _Driver,
        redrive,
        options,
        capabilities,
        script,
        iter(items),
        clock,
        None if recorded_plans else policy or plan,
    )
    trio.run(_main, driver, clock=clock)
    return redrive


async def _main(make: Callable[[], _Driver]) -> None:
    driver = make()
    redrive = driver.redrive
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.service.run)
            await driver.run()
            nursery.cancel_scope.cancel()
    except* Exception as errors:
        if redrive.parted is None:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            redrive.parted = Parted(f"the actors fail: {type(first).__name__}: {first}", driver.due, None)


class _Driver:
    def __init__(
        self,
        redrive: Redrive,
        options: ServiceOptions,
        capabilities: Capabilities,
        script: Script,
        items: Iterator[Item],
        clock: TraceClock,
        policy: Policy | None,
    ) -> None:
        self.redrive = redrive
        self.due: Item | None = None
        """What the trace says next."""
        self._clock = clock
        self._script = script
        self._items = items
        self._ahead: deque[Item] = deque()
        """Of the trace, behind ``due``, read already."""
        self._done: dict[Who, deque[Deed]] = {}
        """What has happened here and not yet come in the trace, by who did it."""
        self._old: list[Deed] = []
        """Of that, what was not set off last; known of traces that break off."""
        self._requests: dict[str, Request] = {}
        self._turn, self._timers, self._masks = GatedTurn(), RecordedTimers(), RecordedMasks()
        self._encode = RecordedEncoder()
        self._device = RecordedDevice(capabilities, script, lambda slot: self.service.loop.running[slot])
        model = LoadedModel(
            name="recorded",
            engine=self._device,
            tokenizer=SilentTokenizer(),  # type: ignore[arg-type]
            preparer=None,  # type: ignore[arg-type]
            eos_token_ids=(),
            defaults=GenerationDefaults(),
            created=0,
        )
        self.service = Service(
            model,
            options,
            self._encode,
            policy or RecordedPlans(redrive, self._rest),
            free_memory=recorded_memory(script.memory),
            outside=Outside(self._turn, self._timers, self._masks),
        )
        self._mail: dict[str, GatedMailbox] = {
            "loop": self.service.loop.mailbox,  # type: ignore[dict-item]
            "encoder": self.service.encoder.mailbox,  # type: ignore[dict-item]
        }
        self._mail["encoder"].precedence = self._encoder_order
        self._reader: EventReader = self.service.events.reader(content=True)

    # -- along the trace ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await wait_all_tasks_blocked()
        self._look()
        begun = self._waiting()
        while (item := self._next()) is not None:
            if isinstance(item, EventRecord) and item.seq > self._script.end:
                break
            self.due = item
            deed = told(item)
            if deed is None:
                continue
            who, what = deed
            if who == ("server", 0) and isinstance(item, EventRecord) and item.event in _IGNORED:
                return  # it ended by a bug; what its actors did then is nobody's to repeat
            try:
                if not self._done.get(who):
                    await self._bring_about(item)
                self._compare(who, what)
            except EndError:
                return
            except PartError as error:
                found = self._done.get(who)
                self.redrive.parted = Parted(str(error), item, said(found[0]) if found else None)
                return
        self.due = None
        left = self._waiting()
        if (
            not self._script.whole
        ):  # it breaks off in the middle of what was set off last, or before all had begun
            left = [one for one in left if _among(one, self._old) and not _among(one, begun)]
        if left:
            self.redrive.parted = Parted("more happens than in the trace", None, said(left[0]))

    def _next(self) -> Item | None:
        return self._ahead.popleft() if self._ahead else next(self._items, None)

    def _following(self) -> Iterator[Item]:
        """What comes behind ``due``, without taking it."""
        ahead = self._ahead
        for at in range(len(ahead)):
            yield ahead[at]
        for item in self._items:
            self._ahead.append(item)
            yield item

    def _rest(self) -> Iterator[Item]:
        """What is due, and what comes behind it."""
        if self.due is not None:
            yield self.due
        yield from self._following()

    def _waiting(self) -> list[Deed]:
        return [one for waiting in self._done.values() for one in waiting]

    def _compare(self, who: Who, what: Any) -> None:
        found = self._done.get(who)
        if not found:
            raise PartError("it does not happen")
        if found[0][1] != what:
            raise PartError("something else happens")
        found.popleft()
        if not found:
            del self._done[who]
        redrive = self.redrive
        if isinstance(self.due, EventRecord):
            redrive.records += 1
        elif who[0] == "plan":
            redrive.plans += 1
        elif who[0] == "launch":
            redrive.launches += 1

    def _look(self) -> None:
        """Take in what has happened."""
        news = self._reader.take()
        for seq, entry in enumerate(news.entries, news.first):
            self._note(EventRecord(seq, *entry))
        for seq, t, make, given in news.details:
            self._note((seq, t, make(*given)))

    def _note(self, item: Any) -> None:
        deed = told(item)
        if deed is not None:
            who, what = deed
            waiting = self._done.get(who)
            if waiting is None:
                waiting = self._done[who] = deque()
            waiting.append((item, what))

    # -- what an item takes -------------------------------------------------------------------------------------------

    async def _bring_about(self, item: Item) -> None:
        """Let that happen which the trace tells of with this item, and see what comes of it."""
        if not self._script.whole:
            self._old = self._waiting()
        if isinstance(item, EventRecord) and item.machine in PASSIVE:
            item = self._cause()
        assert not isinstance(item, FileStart)
        self._clock.reach(item[1])
        if isinstance(item, EventRecord):
            self._let(item)
        else:
            self._make(item[2])
        await wait_all_tasks_blocked()
        self._look()

    def _cause(self) -> Item:
        for item in self._following():
            if isinstance(item, EventRecord):
                if item.machine not in PASSIVE:
                    return item
            elif told(item) is not None:
                return item
        raise self._broken_off("nothing in the trace does it")

    def _broken_off(self, why: str) -> Exception:
        return PartError(why) if self._script.whole else EndError(why)

    def _make(self, detail: object) -> None:
        if isinstance(detail, Arrival):
            self._submit(detail)
        elif isinstance(detail, Planned) and not detail.ahead:
            self._end_turn()
        elif isinstance(detail, Encoded):
            if self._encode.digest != detail.digest:
                raise PartError("the encoder has another picture, or none")
            self._encode.finish(detail)
        else:
            raise PartError("it does not happen")

    def _let(self, record: EventRecord) -> None:
        machine, event = record.machine, record.event
        if machine == "server":
            self._tell_server(event)
        elif machine == "loop" and event == "step.done":
            self._land()
        elif machine == "loop" and event == "turn.done":
            self._end_turn()
        elif machine in self._mail:
            self._deliver(self._mail[machine], event, machine)
        elif machine == "request" and str(record.id) in self._requests:
            request = self._requests[str(record.id)]
            self._deliver(request.mailbox, event, request.order, request)  # type: ignore[arg-type]
        else:
            raise PartError("there is no such machine")

    def _tell_server(self, event: str) -> None:
        if event == "drain":
            self.service.drain()
        elif not (self._turn.end() if event == "drained" else self._timers.fire("server", event)):
            raise PartError("nothing sets it off")

    def _end_turn(self) -> None:
        if not self._turn.waits or self._turn.pending:
            raise PartError("the loop is somewhere else")
        self._turn.allow()

    def _land(self) -> None:
        landed, failures = None, list[Failed]()
        for item in self._following():
            if isinstance(item, FileStart):
                continue
            if isinstance(item, EventRecord):
                if item.machine == "loop":
                    break
            elif isinstance(item[2], Landed) and landed is None:
                landed = item[2]
            elif isinstance(item[2], Failed):
                failures.append(item[2])
        else:
            if landed is None:
                raise self._broken_off("the trace has no results of it")
        if landed is None:
            raise PartError("the trace has no results of it")
        if self._device.next_number != landed.number:
            raise PartError(f"step {landed.number} is not the next one in flight here")
        self._device.land(landed, failures)

    def _deliver(
        self, mail: GatedMailbox, event: str, owner: str | int, request: Request | None = None
    ) -> None:
        """Let the message of that event be handled; one from outside is put first."""
        waiting = mail.next
        if waiting is None or waiting.event != event:
            if not self._from_outside(mail, event, owner, request):
                raise PartError(
                    "nobody has said so" if waiting is None else f"{waiting.event!r} is said to it first"
                )
            mail.last_goes_first()
        mail.let_through()

    def _from_outside(
        self, mail: GatedMailbox, event: str, owner: str | int, request: Request | None
    ) -> bool:
        before = len(mail.held)
        if event in _TIMERS:
            self._timers.fire(owner, event)
        elif request is not None and event in _CLIENT:
            mail.put(Plain(event))
        elif request is not None and event in ("mask.ready", "mask.failed"):
            self._masks.answer(request, event)
        return len(mail.held) > before

    def _encoder_order(self, message: ToEncoder) -> tuple[bool, bool, int]:
        """As the encoder's own; that it is to stop is said to it when that is due. The server says so some rounds of
        tasks after the loop's end, which no record tells."""
        stops = isinstance(self.due, EventRecord) and self.due.event == "stop"
        return ((message.event == "stop") != stops, *_precedence(message))

    # -- requests -----------------------------------------------------------------------------------------------------

    def _submit(self, first: Arrival) -> None:
        """A request, with its further choices."""
        arrivals = [first]
        if first.prompt_tokens > (most := self._device.capabilities.max_context):
            raise PartError(f"request {first.id} has {first.prompt_tokens} tokens, in a context of {most}")
        if first.n > 1:
            for item in self._following():
                if len(arrivals) == first.n:
                    break
                if isinstance(item, EventRecord | FileStart):
                    continue
                if isinstance(item[2], Arrival):
                    arrivals.append(item[2])
        try:
            submissions = submissions_of(arrivals, self._script)
        except ValueError as error:
            raise PartError(f"request {first.id}: {error}") from None
        orders = len(self.service.requests)
        self.service.submit_all(submissions, first.arrived)
        assert len(self.service.requests) == orders + len(submissions)
        for arrival, request in zip(arrivals, list(self.service.requests.values())[orders:], strict=True):
            self._requests[arrival.id] = request


def _among(deed: Deed, deeds: list[Deed]) -> bool:
    return any(deed is one for one in deeds)
