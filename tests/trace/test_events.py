"""The event stream: who looks back sees the records that listeners were told of, numbers included."""

from luce.charts.interpreter import Step
from luce.trace.events import EventRecord, EventStream


def test_looking_back_gives_the_newest_records_as_listeners_had_them() -> None:
    times = iter(range(100))
    stream = EventStream(lambda: float(next(times)), keep=3)
    for name in ("a", "b"):  # before anybody listens
        stream.observe(Step("request", 1, name, 0, ("live",)))
    told: list[EventRecord] = []
    stop = stream.listen(told.append)
    stream.observe(Step("loop", 0, "c", 2, ("idle",)))
    stream.read("host", "free_bytes", 7)
    stream.observe(Step("request", 1, "d", 0, ("live",)))
    stop()
    assert list(stream) == told
    assert len(stream) == 3
    assert told[0] == EventRecord(2, 2.0, "loop", 0, "c", 2, ("idle",), None)
    assert told[1] == EventRecord(3, 3.0, "host", "free_bytes", "read", 0, (), 7)
    stream.observe(Step("request", 1, "e", 0, ("live",)))
    assert [(record.seq, record.event) for record in stream] == [(3, "read"), (4, "d"), (5, "e")]
    assert len(told) == 3


def test_a_listener_may_want_one_machine_only() -> None:
    stream = EventStream(lambda: 1.0)
    every: list[EventRecord] = []
    requests: list[EventRecord] = []
    stream.listen(every.append)
    stop = stream.listen(requests.append, machine="request")
    for name in ("a", "b"):
        stream.observe(Step("request", 1, name, 0, ("live",)))
        stream.observe(Step("loop", 0, name, 0, ("idle",)))
    stream.read("host", "free_bytes", 7)
    assert every == list(stream)
    assert requests == [record for record in stream if record.machine == "request"] != []
    stop()
    stream.observe(Step("request", 1, "c", 0, ("live",)))
    assert every == list(stream)
    assert [record.event for record in requests] == ["a", "b"]
