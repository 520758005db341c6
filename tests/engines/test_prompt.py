"""Prompts: image pads to rows over all turns (B12), ids given directly, what a prompt tells about itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from luce.engines.qwen35.config import Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.positions import mrope_positions
from luce.engines.qwen35.prompt import Prompt, PromptBuilder
from luce.engines.seam import PatchImage
from luce.errors import RequestError
from luce.text.chat_template import ChatTemplate
from luce.text.tokenizer import Tokenizer
from luce.vision.preprocess import Preprocessor
from luce.weights.sources import ChatTemplateSource, PreprocessorSource
from tests.text.small import small_source
from tests.vision.pictures import encode, noise

STYLE = Path(__file__).parents[1] / "text/qwen35_style.jinja"
TOKENIZER = Tokenizer(small_source())
PAD = TOKENIZER.special_ids["<|image_pad|>"]
START, END = TOKENIZER.special_ids["<|vision_start|>"], TOKENIZER.special_ids["<|vision_end|>"]
PICTURES = PreprocessorSource(8, 2, 2, 1024, 16384, (0.5,) * 3, (0.5,) * 3, Path("p.json"))


def config(**changes: Any) -> Qwen35Config:
    text = TextConfig(
        vocab_size=400,
        hidden=48,
        num_layers=4,
        ffn=80,
        heads=4,
        kv_heads=2,
        head_dim=64,
        key_heads=2,
        value_heads=4,
        key_dim=16,
        value_dim=16,
        conv_kernel=4,
        full_attention=(False, False, False, True),
        rms_eps=1e-6,
        rope_theta=1e7,
        rotary_dim=16,
        mrope_section=(3, 3, 2),
        max_positions=4096,
        tied=False,
    )
    vision = VisionConfig(
        depth=2,
        hidden=48,
        heads=3,
        ffn=56,
        patch_size=8,
        temporal_patch_size=2,
        merge_size=2,
        grid_side=6,
        out_hidden=48,
    )
    found = Qwen35Config(
        text=text,
        vision=vision,
        image_token_id=PAD,
        vision_start_id=START,
        vision_end_id=END,
        eos_token_ids=(TOKENIZER.special_ids["<|im_end|>"],),
    )
    return attrs.evolve(found, **changes)


BUILDER = PromptBuilder(
    TOKENIZER,
    ChatTemplate(ChatTemplateSource(STYLE.read_text(), STYLE), TOKENIZER),
    config(),
    Preprocessor(PICTURES),
)


def picture(height: int, width: int, seed: int = 0) -> PatchImage:
    return BUILDER.prepare_image(encode(noise(height, width, seed)), field="image")


def user(*parts: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts],
    }


WIDE, TALL = picture(32, 80), picture(96, 32, 1)


def check(prompt: Prompt, images: list[PatchImage]) -> None:
    """What holds for every prompt."""
    assert prompt.token_ids.dtype == np.int32 and prompt.positions.dtype == np.int32
    assert prompt.positions.shape == (3, len(prompt.token_ids)) and prompt.num_prompt_tokens == len(
        prompt.token_ids
    )
    assert prompt.images == tuple(images) and prompt.num_images == len(images)
    covered = np.zeros(len(prompt.token_ids), bool)
    for number, (span, image) in enumerate(zip(prompt.spans, images, strict=True)):
        assert (span.image, span.length) == (number, image.num_tokens)
        covered[span.start : span.start + span.length] = True
    assert np.array_equal(covered, prompt.token_ids == PAD)
    positions, delta = mrope_positions(len(covered), prompt.spans, [image.grid for image in images], 2)
    assert np.array_equal(prompt.positions, positions) and prompt.rope_delta == delta


def test_images_of_several_turns_in_order() -> None:
    """B12."""
    messages = [
        user(None, "what?"),
        {"role": "assistant", "content": "a"},
        user("and"),
        user("this", None, "?"),
    ]
    prompt = BUILDER.build(messages, [WIDE, TALL])
    check(prompt, [WIDE, TALL])
    swapped = BUILDER.build(messages, [TALL, WIDE])
    check(swapped, [TALL, WIDE])
    assert [span.length for span in prompt.spans] == [WIDE.num_tokens, TALL.num_tokens]
    assert len(prompt.token_ids) == len(swapped.token_ids) and not np.array_equal(
        prompt.positions, swapped.positions
    )
    for span in prompt.spans:
        assert prompt.token_ids[span.start - 1] == START and prompt.token_ids[span.start + span.length] == END


def test_text_is_encoded_as_without_images() -> None:
    plain = BUILDER.build([user("Hi")])
    check(plain, [])
    assert TOKENIZER.decode(plain.token_ids, skip_special=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    with_image = BUILDER.build([user(None, "Hi")], [WIDE])
    rest = with_image.token_ids[(with_image.token_ids != PAD)]
    assert [i for i in rest if i not in (START, END)] == plain.token_ids.tolist()


@pytest.mark.parametrize("text", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"])
def test_markers_in_text_bind_no_image(text: str) -> None:
    prompt = BUILDER.build([user(f"a {text} b", None, text)], [WIDE])
    check(prompt, [WIDE])
    assert (
        TOKENIZER.decode(prompt.token_ids, skip_special=False).count("<|image_pad|>") == WIDE.num_tokens + 2
    )
    with pytest.raises(RequestError):
        BUILDER.build([user(text)], [WIDE])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_counts_must_match(count: int) -> None:
    with pytest.raises(RequestError, match=f"the messages name 2 images, {count} are given") as found:
        BUILDER.build([user(None), user(None)], [WIDE] * count)
    assert found.value.field == "messages"


def test_a_template_that_loses_an_image_is_noticed() -> None:
    source = ChatTemplateSource("{{ messages[0].content if messages[0].content is string else 'x' }}", STYLE)
    builder = attrs.evolve(BUILDER, template=ChatTemplate(source, TOKENIZER))
    with pytest.raises(RequestError, match="wrote 0 image markers for 1 images"):
        builder.build([user(None)], [WIDE])


def test_where_the_answer_begins() -> None:
    messages = [user("q"), {"role": "assistant", "content": "<think>\nr\n</think>\n\na"}, user("r")]
    prompt = BUILDER.build(messages)
    without = BUILDER.build(messages, add_generation_prompt=False)
    assert prompt.answer_start == len(without.token_ids) == without.answer_start
    assert np.array_equal(prompt.token_ids[: prompt.answer_start], without.token_ids)
    assert prompt.starts_in_thinking and not without.starts_in_thinking
    closed = BUILDER.build(messages, template_kwargs={"enable_thinking": False})
    assert not closed.starts_in_thinking and closed.answer_start == prompt.answer_start


def test_an_answer_that_goes_on_has_the_rows_of_the_whole_turn() -> None:
    question, text = user("q"), "Hello wör<|im_end|></think>ld"
    off = {"enable_thinking": False}
    begun = BUILDER.build([question], template_kwargs=off, continuation=text)
    said = {"role": "assistant", "content": text.replace("</think>", "")}
    whole = BUILDER.build([question, said], add_generation_prompt=False)
    plain = BUILDER.build([question], template_kwargs=off, continuation=said["content"])
    assert np.array_equal(whole.token_ids[: len(plain.token_ids)], plain.token_ids)
    assert TOKENIZER.decode(whole.token_ids[len(plain.token_ids) :], skip_special=False) == "<|im_end|>\n"
    assert not begun.starts_in_thinking and begun.answer_start == plain.answer_start
    special = [int(i) for i in begun.token_ids if int(i) in set(TOKENIZER.special_ids.values())]
    bare = BUILDER.build([question], template_kwargs=off)
    assert special == [int(i) for i in bare.token_ids if int(i) in set(TOKENIZER.special_ids.values())]


def test_counting_is_building() -> None:
    messages = [user(None, "what?"), {"role": "assistant", "content": "a"}, user("this", None, "?")]
    sizes = [WIDE.num_tokens, TALL.num_tokens]
    tools = [{"type": "function", "function": {"name": "add"}}]
    for options in (
        {},
        {"tools": tools},
        {"continuation": "and"},
        {"template_kwargs": {"add_vision_id": True}},
    ):
        prompt = BUILDER.build(messages, [WIDE, TALL], **options)  # type: ignore[arg-type]
        assert BUILDER.count(messages, sizes, **options) == len(prompt.token_ids)  # type: ignore[arg-type]
    assert BUILDER.count([user("Hi")]) == len(BUILDER.build([user("Hi")]).token_ids)
    with pytest.raises(RequestError, match="the messages name 2 images, 1 are given"):
        BUILDER.count(messages, sizes[:1])


def test_options_are_those_that_may_be_set() -> None:
    assert BUILDER.options >= {"enable_thinking", "add_vision_id"}
    assert not BUILDER.options & {"messages", "tools", "add_generation_prompt", "raise_exception"}
    assert attrs.evolve(BUILDER, template=None).options == frozenset()


def test_tools_and_variables_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    text = TOKENIZER.decode(BUILDER.build([user("x")], tools=tools).token_ids)
    assert '\n{"type": "function", "function": {"name": "add"}}\n' in text
    prompt = BUILDER.build([user(None)], [WIDE], template_kwargs={"add_vision_id": True})
    assert "Picture 1: " in TOKENIZER.decode(prompt.token_ids)


@pytest.mark.parametrize("form", ["one", "rows"])
def test_ids_with_one_pad_or_all(form: str) -> None:
    def pads(image: PatchImage) -> list[int]:
        return [PAD] * (1 if form == "one" else image.num_tokens)

    ids = [1, START, *pads(WIDE), END, 2, START, *pads(TALL), END, 3]
    prompt = BUILDER.from_ids(ids, [WIDE, TALL])
    check(prompt, [WIDE, TALL])
    assert prompt.answer_start == len(prompt.token_ids) and not prompt.starts_in_thinking
    neighbours = BUILDER.from_ids([*pads(WIDE), *pads(TALL)], [WIDE, TALL])
    check(neighbours, [WIDE, TALL])
    assert [span.start for span in neighbours.spans] == [0, WIDE.num_tokens]


@pytest.mark.parametrize(
    ("ids", "images", "reason"),
    [
        ([], [], "must not be empty"),
        ([1, 400], [], r"ids\[1\] is 400; the model has ids 0 to 399"),
        ([-1], [], r"ids\[0\] is -1"),
        ([1, PAD], [], "1 image pads for 0 images"),
        ([1], [WIDE], "0 image pads for 1 images"),
        ([PAD, 1, PAD], [WIDE], "2 image pads for 1 images"),
        ([PAD] * (WIDE.num_tokens + 1), [WIDE], "image pads for 1 images"),
        ([PAD, 1, *[PAD] * (WIDE.num_tokens - 1)], [WIDE], "are not 10 in a row"),
        (
            [*[PAD] * 4, 1, *[PAD] * (WIDE.num_tokens + TALL.num_tokens - 4)],
            [WIDE, TALL],
            "are not 10 in a row",
        ),
    ],
)
def test_ids_that_do_not_fit(ids: list[int], images: list[PatchImage], reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as found:
        BUILDER.from_ids(ids, images)
    assert found.value.field == "ids"


def test_models_without_vision_or_template() -> None:
    blind = attrs.evolve(BUILDER, config=config(vision=None, image_token_id=None), preprocessor=None)
    check(blind.build([user("Hi")]), [])
    with pytest.raises(RequestError, match="no vision tower"):
        blind.build([user(None)], [WIDE])
    with pytest.raises(RequestError, match="no vision tower") as found:
        blind.prepare_image(b"", field="messages[0].content[0].image_url.url")
    assert found.value.field == "messages[0].content[0].image_url.url"
    bare = attrs.evolve(BUILDER, tokenizer=None, template=None)
    check(bare.from_ids([1, PAD, 2], [WIDE]), [WIDE])
    with pytest.raises(RequestError, match="no chat template"):
        bare.build([user("x")])


def test_faults_of_pictures_are_named() -> None:
    for data in (b"", b"GIF89a", encode(noise(1, 300))):
        with pytest.raises(RequestError) as found:
            BUILDER.prepare_image(data, field="messages[2].content[1].image_url.url")
        assert found.value.field == "messages[2].content[1].image_url.url"


@pytest.mark.parametrize(("height", "width"), [(32, 80), (96, 32), (1, 1), (1000, 20), (300, 300)])
def test_rows_are_known_from_the_header(height: int, width: int) -> None:
    data = encode(noise(height, width))
    assert BUILDER.image_tokens(data, field="i") == BUILDER.prepare_image(data, field="i").num_tokens
    assert BUILDER.image_tokens(data[:40], field="i") > 0, "the pixels are not looked at"


def test_builds_on_several_threads_do_not_meet() -> None:
    jobs = [
        ([user(None, f"q{i} <|im_end|>"), user("x" * i, None)], [WIDE, TALL][:: 1 - 2 * (i % 2)])
        for i in range(32)
    ]
    alone = [BUILDER.build(*job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        for one, two in zip(alone, pool.map(lambda job: BUILDER.build(*job), jobs), strict=True):
            assert np.array_equal(one.token_ids, two.token_ids) and np.array_equal(
                one.positions, two.positions
            )
