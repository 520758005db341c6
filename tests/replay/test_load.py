"""Load: what is sent, when and how long, and what clients do, against a server by the book."""

from __future__ import annotations

import attrs
import pytest
import trio

from luce.errors import DeviceError
from luce.replay.load.bodies import Writer
from luce.replay.load.fire import Limits, fire
from luce.replay.load.probe import probe
from luce.replay.load.request import Leaving, Stall
from luce.replay.load.tally import Tally
from luce.replay.load.target import Target, parse_target
from tests.replay.load_case import FOREVER, plain, run, texts
from tests.replay.scripted_server import PER_TURN, Scripted, scripted

# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenize", [True, False])
def test_prompts_have_their_lengths_and_answers_too(tokenize: bool) -> None:
    server = Scripted(tokenize=tokenize)
    lengths = [20, 21, 100, 999, 5000]
    tally = run(server, [plain(prompt=length, output=3) for length in lengths])
    assert sorted(server.prompt_tokens(body["messages"]) for body in server.asked) == lengths
    assert tally.endings == {"finished": 5}
    assert (tally.prompt_tokens, tally.wanted_prompt) == (sum(lengths), sum(lengths))
    assert (tally.output_tokens, tally.wanted_output) == (15, 15)
    assert len({texts(body)[0][:30] for body in server.asked}) == 5, "nobody shares a start"
    assert all(body["ignore_eos"] and body["stream_options"]["include_usage"] for body in server.asked)


def test_equal_names_are_equal_turns_and_the_lengths_stay() -> None:
    server = Scripted()
    common = tuple(range(10))
    asked = [
        plain(0.0, 1000, 1, prefix_blocks=(*common, 20, 21, 22, 23, 24, 25), block_size=64),
        plain(0.1, 1020, 1, prefix_blocks=(*common, 30, 31, 32, 33, 34, 35), block_size=64),
        plain(0.2, 700, 1, prefix_blocks=tuple(range(50, 61)), block_size=64),
    ]
    run(server, asked)
    first, second, other = (texts(body) for body in server.asked)
    assert first[:5] == second[:5], "10 blocks of 64 are 5 turns of 128"
    assert first[5] != second[5] and first[0] != other[0]
    for body, request in zip(server.asked, asked, strict=True):
        found = server.prompt_tokens(body["messages"])
        assert abs(found - request.traffic.prompt_tokens) <= 2 * PER_TURN + 2
        roles = [message["role"] for message in body["messages"]]
        assert roles == [("user", "assistant")[index % 2] for index in range(len(roles))]
        assert roles[-1] == "user"


def test_one_name_is_one_prompt() -> None:
    server = Scripted()
    run(server, [plain(0.0, name="a"), plain(0.05, name="a"), plain(0.1, name="b"), plain(0.15, text="Why?")])
    one, same, other, given = (texts(body) for body in server.asked)
    assert one == same != other
    assert given == ["Why?"]


def test_pictures_have_their_tokens_and_names() -> None:
    server = Scripted()
    requests = [
        plain(0.0, 600, 1, images=(256, 100)),
        plain(0.1, 400, 1, images=(256,), pictures=("p",)),
        plain(0.2, 400, 1, images=(256,), pictures=("p",)),
        plain(0.3, 400, 1, images=(0,)),
    ]
    tally = run(server, requests)
    assert [server.prompt_tokens(body["messages"]) for body in server.asked] == [600, 400, 400, 400]
    urls = [part["image_url"]["url"] for body in server.asked for part in body["messages"][-1]["content"][1:]]
    assert len(urls) == 5 and urls[2] == urls[3] and len(set(urls)) == 4
    assert tally.endings == {"finished": 4}


def test_a_server_without_pictures() -> None:
    server = Scripted(pictures=False)
    requests = [plain(0.0, 400, 1, images=(256,)), plain(0.0, 50, 1)]
    tally = run(server, requests)
    assert tally.endings == {"unsent": 1, "finished": 1}
    assert dict(tally.errors) == {"the server takes no pictures (--no-pictures)": 1}
    server = Scripted(pictures=False)
    run(server, requests[:1], without_pictures=True)
    assert [server.prompt_tokens(body["messages"]) for body in server.asked] == [400]


def test_a_server_that_knows_no_more_than_openai() -> None:
    server = Scripted(strict=True)
    tally = run(server, [plain()])
    assert tally.endings == {"finished": 1} and "ignore_eos" not in server.asked[0]


# -- clients ----------------------------------------------------------------------------------------------------------


def test_what_goes_wrong_is_counted_by_kind() -> None:
    kinds = {10: 503, 11: "break", 12: None, 13: "close"}
    server = Scripted(fail=lambda body: kinds[body["max_tokens"]])
    tally = run(server, [plain(output=tokens) for tokens in (10, 10, 11, 12, 13)])
    assert tally.endings == {"refused": 2, "failed": 2, "finished": 1}
    assert tally.errors == {
        "HTTP 503: not today": 2,
        "connection: closed before the answer was whole": 2,
    }
    assert tally.output_tokens == 12, "of whole answers only"


def test_clients_leave_where_the_trace_says() -> None:
    server = Scripted(pause=0.001)
    tally = run(server, [plain(output=100_000, leaves=Leaving(3, 0.0)), plain(0.01)])
    assert tally.endings == {"left": 1, "finished": 1} and not tally.errors
    assert 3 <= server.pieces[0] < 100_000
    server = Scripted(pause=FOREVER)
    tally = run(server, [plain(leaves=Leaving(0, 0.2))])
    assert tally.endings == {"left": 1} and len(server.asked) == 1 and server.pieces == [0]


def test_clients_stall_where_the_trace_says() -> None:
    tally = run(Scripted(), [plain(output=6, stalls=(Stall(2, 1.0), Stall(4, 0.1)))])
    assert tally.stalls == 2 and tally.endings == {"finished": 1}
    assert tally.lag.most > 0.5, "what came meanwhile was not looked at"
    assert run(Scripted(), [plain(output=6)]).stalls == 0


def test_a_connection_that_is_refused_is_counted() -> None:
    async def both() -> Tally:
        async with scripted(Scripted()) as server:
            target = parse_target(server.url)
            writer = Writer(await probe(target, None), 0, 256)
        return await fire(target, iter([plain()]), writer, Limits())

    tally = trio.run(both)
    assert tally.endings == {"failed": 1}
    assert next(iter(tally.errors)) == "connection: the connection was refused: nobody listens there"


def test_the_key_goes_along() -> None:
    async def ask() -> Scripted:
        async with scripted(Scripted()) as server:
            target = parse_target(f"{server.url}/v1/", "secret")
            writer = Writer(await probe(target, "m"), 0, 256)
            await fire(target, iter([plain()]), writer, Limits())
            return server

    server = trio.run(ask)
    assert {head.get("authorization") for head in server.headers} == {"Bearer secret"}
    assert server.asked[0]["model"] == "m"


def test_addresses() -> None:
    assert parse_target("http://host:8000/v1") == Target("host", 8000, "")
    assert parse_target("http://host/api/v1/") == Target("host", 80, "/api")
    assert (parse_target("https://[::1]").port, parse_target("https://[::1]").authority) == (443, "[::1]:443")
    for bad in ("host:8000", "ftp://host", "http://", "http://h:x", "http://h/a b", "http://h?x=1", ""):
        with pytest.raises(Exception, match=r"^URL: "):
            parse_target(bad)


@pytest.mark.parametrize(
    ("silent", "path"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/tokenize", "/tokenize"),
        ("pictures", "/v1/chat/completions"),
    ],
)
def test_a_server_that_says_nothing_is_not_waited_for(silent: str, path: str) -> None:
    """Nor is one that says nothing of a picture taken for one that takes none."""

    async def ask() -> None:
        async with scripted(Scripted(silent=silent)) as server:
            await probe(attrs.evolve(parse_target(server.url), seconds=0.5), None)

    with pytest.raises(BaseExceptionGroup) as raised:
        trio.run(ask)
    (error,) = raised.value.exceptions
    assert isinstance(error, DeviceError)
    assert str(error).endswith(f"{path}: no whole answer within 0.5 s (--timeout)")
