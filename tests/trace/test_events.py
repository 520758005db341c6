"""The event stream: who looks back sees the records that listeners were told of, numbers included."""

import numpy as np

from luce.actors.slot_memory import SlotMemory
from luce.charts.interpreter import Step
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.trace.events import ANY, EventRecord, EventStream, Range


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


def test_a_range_of_blocks_is_one_record() -> None:
    stream = EventStream(lambda: 1.0)
    pool = SlotMemory(FakeEngine(fake_capabilities()), 0, 0, events=stream).pool
    hold = pool.allocate(3)
    pool.release(hold)
    first, second = stream
    assert first[2:7] == ("block", ANY, "alloc", 0, ())
    assert first.value.ids.tolist() == [0, 1, 2] and first.value.bits is None
    held = first.value.after.tolist()
    assert second.event == "release" and second.value.bits.tolist() == [0, 0, 0]
    assert second.value.after.tolist() == list(pool.state_bytes()[:3]) != held


def test_ranges_are_equal_by_what_is_in_them() -> None:
    ids, bits, after = np.array([1, 2]), np.array([0, 1], np.uint8), np.array([3, 3], np.uint8)
    one = Range(ids, bits, after)
    assert one == Range(ids.copy(), bits.copy(), after.copy())
    for other in (Range(ids + 1, bits, after), Range(ids, None, after), Range(ids, bits, bits), 3):
        assert one != other


def test_details_are_kept_while_somebody_wants_them() -> None:
    stream = EventStream(lambda: 2.0, keep=2)
    stream.detail(int, "1")
    assert not stream.detailed
    reader, other = stream.reader(content=True), stream.reader()
    assert stream.content and stream.detailed
    stream.observe(Step("request", 1, "a", 0, ("live",)))
    stream.detail(int, "2")
    for name in ("b", "c"):
        stream.observe(Step("request", 1, name, 0, ("live",)))
    news = reader.take()
    assert (news.first, [entry[3] for entry in news.entries], news.lost) == (1, ["b", "c"], 1)
    assert news.details == [(1, 2.0, int, ("2",))]
    assert reader.take() == (3, [], [], 0)
    stream.detail(int, "3")
    reader.close()
    reader.close()
    stream.detail(int, "4")
    assert reader.take().details == [] and not stream.content
    assert other.take() == (
        *news[:2],
        [(1, 2.0, int, (one,)) if one == "2" else (3, 2.0, int, (one,)) for one in "234"],
        1,
    )
    other.close()
    assert not stream.detailed


def test_no_more_details_are_kept_for_a_reader_than_it_wants() -> None:
    stream = EventStream(lambda: 2.0, keep=2)
    reader, other = stream.reader(most_details=3), stream.reader()
    for number in range(10):
        stream.detail(int, number)
    assert [given for _, _, _, given in reader.take().details] == [(7,), (8,), (9,)]
    assert len(other.take().details) == 10
    stream.detail(int, 10)
    assert reader.take().details == [(0, 2.0, int, (10,))]
    for number in range(10):
        stream.detail(int, number)
    reader.close()
    assert reader.take().details == []
