"""Requests of a real engine's trace run again: equal tokens in other company, and every other token is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Submission
from luce.actors.token_buffer import End
from luce.cli.in_process import running
from luce.cli.main import _run as cli
from luce.compute.host_device import HostDevice
from luce.compute.operands import Operands
from luce.engines import choose_device
from luce.engines.load_model import LoadOptions, OpenedModel, load_model, open_model
from luce.errors import ConfigError
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from luce.replay.exact import Rerun, check_repeatable, run_again
from luce.replay.recorded_requests import RecordedRequest, recorded_requests
from luce.replay.redrive.driver import drive
from luce.replay.redrive.script import script_of
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Gap, Landed
from luce.vision.preprocess import Preprocessor
from tests.e2e.test_serve import body, picture, url
from tests.trace.recording import StepRecorder, header, items_of
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@attrs.frozen(eq=False)
class Recording:
    model: Path
    trace: Path
    events: frozenset[str]
    """Machines with what they did."""
    finished: int
    cancelled: int

    def opened(self, slots: int, **changes: Any) -> OpenedModel:
        return open_model(self.model, LoadOptions(slots=slots, context=256, **changes), fitting=False)


def asked(model: Any) -> Iterator[tuple[Submission, ...]]:
    """Texts and pictures, greedy and drawn, with a form, with choices; long enough to press each other out however
    long masks take: with answers half as long some gave way at times, but with slow masks one, and at times none.
    """
    for number in range(14):
        fields: dict[str, Any] = {
            "max_tokens": 70 + 14 * (number % 4),
            "temperature": number % 3,
            "seed": number,
        }
        fields |= {"ignore_eos": True, "min_tokens": 3, "frequency_penalty": 0.5, "logit_bias": {"65": 2}}
        if number % 5 == 2:
            fields["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
            }
            fields["max_tokens"] = 40
            del fields["min_tokens"], fields["ignore_eos"]
        if number % 6 == 4:
            fields["n"] = 2
        if number % 7 == 5:
            fields["stop"] = ["e", "a"]
        parts = ["word " * (1 + 2 * number), *([url(picture(32, 32))] if number % 3 == 1 else [])]
        text = msgspec.json.encode(body(*parts, **fields))
        yield prepare_chat(text, model, HttpOptions()).job.submissions


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recorded")
    write_hf(folder / "Tiny-VL", random_model())
    trace = folder / "trace"
    opened = open_model(
        folder / "Tiny-VL", LoadOptions(slots=4, context=256, block_size=16, num_blocks=16), fitting=False
    )
    ends: list[End] = []
    events: set[str] = set()

    async def ask(service: Service, submissions: tuple[Submission, ...], leaves: bool) -> None:
        for handle in service.submit_all(submissions):
            pieces = 0
            while not isinstance(item := await handle.next(), End):
                pieces += 1
                if leaves and pieces == 4:
                    handle.cancel()
            ends.append(item)

    async def main() -> None:
        model = load_model(opened)
        options = ServiceOptions(prefill_budget=24, depth=2, park_bytes=1 << 20)
        recorder = StepRecorder(trace, content=True)
        service = Service(model, options, recorder=recorder)
        service.events.listen(lambda record: events.add(f"{record.machine} {record.event}"))
        given = list(asked(model))  # that all of them come at once is what makes some give way
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            async with trio.open_nursery() as crowd:
                for number, submissions in enumerate(given):
                    crowd.start_soon(ask, service, submissions, number % 6 == 3)
            service.drain()
            await service.stopped()

    trio.run(main)
    cancelled = sum(end.reason == "cancelled" for end in ends)
    return Recording(folder / "Tiny-VL", trace, frozenset(events), len(ends) - cancelled, cancelled)


def test_everything_that_could_matter_was_recorded(recording: Recording) -> None:
    needed = {
        "request park.save", "request resume", "request mask.ready", "request cancel", "request lead.over",
        "encoder image.done", "prefix_entry lock",
    }  # fmt: skip
    assert needed <= recording.events, needed - recording.events
    found = list(recorded_requests(items_of(recording.trace)))
    assert len(found) == recording.finished + recording.cancelled and all(one.complete for one in found)
    assert sum(one.end == "cancelled" for one in found) == recording.cancelled > 0
    assert any(one.arrival.constrained for one in found) and any(one.arrival.pictures for one in found)
    for one in found:
        asked_for = one.arrival.sampling["max_tokens"]
        assert len(one.tokens) == asked_for or one.end == "cancelled" or one.arrival.stops or one.arrival.form


def again(
    recording: Recording,
    slots: int,
    requests: Iterator[RecordedRequest],
    *,
    beside: int = 0,
    num_blocks: int | None = None,
    block_size: int = 64,
    **options: Any,
) -> Rerun:
    opened = recording.opened(slots, num_blocks=num_blocks, block_size=block_size)
    model = load_model(opened)
    assert opened.files.preprocessor is not None
    scale = Preprocessor(opened.files.preprocessor).scale

    async def main() -> Rerun:
        async with running(model, ServiceOptions(**options)) as service:
            return await run_again(service, requests, scale, beside=beside or 2 * slots)

    return trio.run(main)


@pytest.mark.parametrize(
    ("slots", "budget", "depth", "blocks"),
    [(1, None, 1, None), (3, 5, 1, None), (5, 24, 2, 17), (8, 64, 2, None), (2, 1, 2, None)],
)
def test_every_token_is_equal_in_other_company(
    recording: Recording, slots: int, budget: int | None, depth: int, blocks: int | None
) -> None:
    requests = recorded_requests(items_of(recording.trace))
    size = 16 if blocks else 64
    rerun = again(
        recording, slots, requests, num_blocks=blocks, block_size=size, prefill_budget=budget, depth=depth
    )
    assert not rerun.others and not rerun.skipped
    assert rerun.requests == recording.finished + recording.cancelled and rerun.tokens > 200


def test_the_actors_do_the_same(recording: Recording) -> None:
    """Of a real engine's trace, whose steps took what they took."""
    items = items_of(recording.trace)
    start = items[0]
    assert isinstance(start, FileStart)
    found = drive(start.header, script_of(items), items)
    assert found.parted is None and found.records > 500 and found.plans > found.launches > 50


def test_the_command(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "exact", str(recording.trace), str(recording.model)]
    assert cli([*arguments, "--slots", "3", "--prefill", "7"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{recording.finished + recording.cancelled} requests, ")
    assert said.endswith("tokens: every one is equal\n")


Change = Callable[[RecordedRequest], RecordedRequest]


def one_token_other(one: RecordedRequest) -> RecordedRequest:
    middle = len(one.tokens) // 2
    tokens = list(one.tokens)
    tokens[middle] = (tokens[middle] + 1) % 200
    return attrs.evolve(one, tokens=tuple(tokens))


def other_seed(one: RecordedRequest) -> RecordedRequest:
    sampling = one.arrival.sampling | {"seed": 99, "temperature": 5.0}
    return attrs.evolve(one, arrival=msgspec.structs.replace(one.arrival, sampling=sampling))


def other_picture(one: RecordedRequest) -> RecordedRequest:
    (image,) = one.arrival.pictures
    assert image.values is not None
    changed = msgspec.structs.replace(image, digest=b"other", values=bytes(len(image.values)))
    return attrs.evolve(one, arrival=msgspec.structs.replace(one.arrival, pictures=(changed,)))


@pytest.mark.parametrize("change", [one_token_other, other_seed, other_picture])
def test_what_differs_is_found(recording: Recording, change: Change) -> None:
    requests = list(recorded_requests(items_of(recording.trace)))
    place = next(
        at
        for at, one in enumerate(requests)
        if len(one.tokens) > 8
        and not one.arrival.constrained
        and (one.arrival.pictures or change is not other_picture)
    )
    requests[place] = change(requests[place])
    rerun = again(recording, 4, iter(requests))
    (other,) = rerun.others
    assert other.id == requests[place].arrival.id and other.recorded != other.found
    if change is one_token_other:
        assert other.place == len(requests[place].tokens) // 2 and other.found is not None


def test_what_cannot_be_run_again_is_told(recording: Recording) -> None:
    requests = list(recorded_requests(items_of(recording.trace)))
    bare = msgspec.structs.replace(requests[0].arrival, token_ids=None)
    odd = msgspec.structs.replace(requests[1].arrival, sampling={"beam_width": 3})
    formless = next(one.arrival for one in requests if one.arrival.constrained)
    formless = msgspec.structs.replace(formless, form=None)
    given = [
        RecordedRequest(bare, (1, 2), "finished"),
        RecordedRequest(odd, (1, 2), "finished"),
        RecordedRequest(formless, (1, 2), "finished"),
        RecordedRequest(requests[0].arrival, (), "failed"),
        RecordedRequest(requests[0].arrival, (1,), "finished", complete=False),
    ]
    rerun = again(recording, 2, iter(given))
    assert rerun.requests == 0 and not rerun.others
    assert sorted(rerun.skipped) == [
        "SamplingParams.__init__() got an unexpected keyword argument 'beam_width'",
        "it got no token",
        "its form is not in the trace",
        "no content",
        "the trace does not say all of its tokens",
    ]


@pytest.mark.parametrize(
    ("changes", "sampling", "said"),
    [
        ({"token_ids": b"\xff\xff\xff\x7f"}, {}, "token ids outside the vocabulary"),
        ({"token_ids": b"\xff\xff\xff\xff"}, {}, "token ids outside the vocabulary"),
        ({"positions": b"\xff\xff\xff\x7f"}, {}, "positions outside the context"),
        ({"positions": b"\xff\xff\xff\xff"}, {}, "positions outside the context"),
        ({"rope_delta": 10**9}, {}, "an answer whose positions are not behind its prompt's"),
        ({}, {"temperature": float("nan")}, "temperature must be from 0 to 100, not nan"),
        ({}, {"temperature": "x"}, "temperature must be a number, not str"),
        ({}, {"top_k": "a"}, "top_k must be an integer, not str"),
        ({}, {"min_tokens": "a"}, "min_tokens must be an integer, not str"),
        ({}, {"stop_token_ids": [1, "x"]}, "stop_token_ids must hold token ids, not str"),
        ({}, {"eos_token_ids": [1, "x"]}, "an end-of-sequence token outside the vocabulary"),
        ({}, {"seed": None, "temperature": 1.0}, "its seed is not in the trace"),
    ],
)
def test_a_damaged_request_is_named_and_leaves_the_others_alone(
    recording: Recording, changes: dict[str, Any], sampling: dict[str, Any], said: str
) -> None:
    requests = list(recorded_requests(items_of(recording.trace)))[:5]
    was = requests[2].arrival
    for name, value in changes.items():
        if isinstance(value, bytes):
            changes = changes | {name: value * (len(getattr(was, name)) // 4)}
    bad = msgspec.structs.replace(was, **changes | {"sampling": was.sampling | sampling})
    requests[2] = attrs.evolve(requests[2], arrival=bad)
    rerun = again(recording, 4, iter(requests))
    assert (rerun.requests, rerun.others) == (4, [])
    assert rerun.skipped == {said: 1} and rerun.first_skipped == {said: was.id} and rerun.missed == 1


def test_the_command_fails_where_an_answer_cannot_be_compared(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = list(recorded_requests(items_of(recording.trace)))[:4]
    silent = attrs.evolve(whole[0], tokens=())
    incomplete = attrs.evolve(whole[1], complete=False)
    for given, code in (([silent, *whole[2:]], 0), ([silent, incomplete, *whole[2:]], 1)):
        monkeypatch.setattr("luce.cli.replay_exact.recorded_requests", lambda items, given=given: iter(given))
        assert cli(["replay", "exact", str(recording.trace), str(recording.model)]) == code
        said = capsys.readouterr().out
        assert "1 requests not compared: it got no token\n" in said and "every one is equal" in said
        missing = f"1 requests not compared: the trace does not say all of its tokens (request {incomplete.arrival.id})"
        assert (missing in said) == bool(code) == ("of 1 more that were answered nothing is known" in said)


@pytest.mark.parametrize(
    ("options", "said"), [({"depth": "x"}, "depth 'x'"), ({"prefill_budget": -1}, "prefill_budget -1")]
)
def test_the_command_refuses_a_server_that_nobody_set_up(
    recording: Recording,
    options: dict[str, Any],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.trace.recording import written

    start = items_of(recording.trace)[0]
    assert isinstance(start, FileStart)
    head = start.header
    kept = {
        "content": True,
        "fingerprint": head.fingerprint,
        "model": head.model,
        "options": head.options | options,
    }
    written(tmp_path, [], capabilities=head.capabilities, **kept)
    assert cli(["replay", "exact", str(tmp_path), str(recording.model)]) == 2
    error = capsys.readouterr().err
    assert "TRACE: its header does not say what its engine was" in error and said in error


def details(items: list[Item], kind: type) -> list[Any]:
    return [
        item
        for item in items
        if isinstance(item, tuple) and not isinstance(item, EventRecord) and isinstance(item[2], kind)
    ]


def test_a_request_of_which_something_is_missing_is_not_compared(recording: Recording) -> None:
    items = items_of(recording.trace)
    whole = list(recorded_requests(items))
    third = details(items, Arrival)[2]
    assert len(list(recorded_requests(item for item in items if item is not third))) == len(whole) - 1
    fullest = max(details(items, Landed), key=lambda item: sum(len(tokens) for _, tokens in item[2].sampled))
    left = list(recorded_requests(item for item in items if item is not fullest))
    assert len(left) == len(whole) and not all(one.complete for one in left)
    middle = next(
        at for at, item in enumerate(items) if isinstance(item, EventRecord) and item.event == "mask.ready"
    )
    gap = (items[middle].seq, 0.0, Gap(3))  # type: ignore[union-attr]
    left = list(recorded_requests([*items[:middle], gap, *items[middle:]]))
    assert len(left) < len(whole)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"content": False}, "TRACE: it has no content, .* --trace-content"),
        ({"fingerprint": None}, "TRACE: its engine has no fingerprint"),
        ({"fingerprint": "another"}, "TRACE: it was recorded on another device: another; this one is mine"),
        ({"model": "other"}, "MODEL: the trace is of the model 'other', not of 'tiny'"),
    ],
)
def test_refusals(changes: dict[str, Any], said: str) -> None:
    good = {"content": True, "fingerprint": "mine", "model": "tiny"}
    check_repeatable(header(**good), "tiny", "mine")
    with pytest.raises(ConfigError, match=f"^{said}"):
        check_repeatable(header(**(good | changes)), "tiny", "mine")


def test_the_command_refuses_before_it_loads(
    tmp_path: Path, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.trace.recording import written

    written(tmp_path, [], fingerprint="mine")
    assert cli(["replay", "exact", str(tmp_path), str(recording.model)]) == 2
    assert "it has no content" in capsys.readouterr().err


def test_another_device_than_the_recorded_one(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded on numpy, run again where a GPU would be: refused by the names of both before a token is computed."""
    wanted: list[str] = []

    def choose(name: str, operands: Operands | None = None) -> HostDevice:
        wanted.append(name)
        return HostDevice()

    monkeypatch.setattr(choose_device, "choose_device", choose)
    monkeypatch.setattr("luce.cli.in_process.load_model", lambda *_: pytest.fail("it loads"))
    arguments = ["replay", "exact", str(recording.trace), str(recording.model), "--device", "cuda:0"]
    assert cli(arguments) == 2
    said = capsys.readouterr().err
    recorded = items_of(recording.trace)[0].header.fingerprint  # type: ignore[union-attr]
    assert f"recorded on another device: {recorded}; this one is {HostDevice().fingerprint}." in said
    assert wanted == ["cuda:0"]
    monkeypatch.undo()
    monkeypatch.setattr(choose_device, "choose_device", choose)  # auto: not on this GPU, so on the CPU
    assert cli(arguments[:-2]) == 0 and wanted == ["cuda:0", "auto"]
