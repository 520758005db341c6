"""Limits against the project's own table for one H200: 4.3 TB/s copied, 790 TFLOP/s."""

from __future__ import annotations

import numpy as np
import pytest

from luce.bench.limits import (
    Lane,
    Speeds,
    StateForm,
    Work,
    encode_work,
    experts_asked,
    file_weight_bytes,
    parameters,
    prefill_seconds,
    step_work,
    weight_bytes,
)
from luce.bench.yardstick import device_speeds
from luce.compute.host_device import HostDevice
from luce.engines.load_model import demo_model
from luce.engines.qwen35.loading import load_config
from luce.engines.qwen35.shapes import RELEASED, released
from luce.weights.model_files import resolve_model

H200 = Speeds(4.3e12, 790e12)
CONTEXTS = (0, 4096, 32768)

RATES = [
    # shape, format, bytes in GB, then tok/s at contexts 0 / 4K / 32K for 1, 4, 16 and 64 rows
    ("0.8b", "BF16", 1.50, "2785/2697/2209 10328/9214/5250 31994/23277/8007 67280/37639/9216"),
    ("9b", "BF16", 15.9, "269/267/252 1056/1022/835 3919/3492/1981 12167/8818/3013"),
    ("9b", "Q8_0", 8.43, "504/496/447 1943/1832/1308 6800/5609/2520 18131/11579/3280"),
    ("9b", "Q4_K", 4.73, "890/866/728 3341/3026/1822 10729/8037/2916 23988/13717/3432"),
    ("9b", "IQ4_XS", 4.51, "932/905/756 3488/3145/1864 11103/8246/2943 24448/13867/3441"),
    ("27b", "BF16", 51.2, "83/83/80 328/321/282 1223/1136/759 3858/3109/1318"),
    ("27b", "Q8_0", 27.2, "156/155/145 604/582/464 2134/1883/1033 5817/4268/1490"),
    ("27b", "Q4_K", 14.7, "286/281/250 1075/1008/700 3482/2860/1271 7903/5292/1598"),
    ("27b", "IQ4_XS", 14.0, "301/295/262 1129/1055/722 3621/2953/1289 8080/5371/1605"),
]


@pytest.mark.parametrize(("shape", "form", "gigabytes", "rates"), RATES)
def test_decode_rates_of_the_table(shape: str, form: str, gigabytes: float, rates: str) -> None:
    text = released(f"qwen3.5-{shape}").text
    weights = weight_bytes(text, form)
    assert weights.total() / 1e9 == pytest.approx(gigabytes, rel=4e-3)
    for rows, row in zip((1, 4, 16, 64), rates.split(), strict=True):
        for context, rate in zip(CONTEXTS, row.split("/"), strict=True):
            work = step_work(text, weights, [Lane(context)] * rows, state=StateForm.RECURRENT)
            assert work.bound(H200) == "bytes"
            assert rows / work.seconds(H200) == pytest.approx(float(rate), abs=1.5)


@pytest.mark.parametrize(
    ("shape", "milliseconds", "rate"),
    [
        ("0.8b", 12.8, 638e3),
        ("4b", 81, 101e3),
        ("9b", 150, 54.5e3),
        ("27b", 525, 15.6e3),
        ("35b-a3b", 58, 142e3),
    ],
)
def test_a_prompt_of_8192_is_bound_by_flops(shape: str, milliseconds: float, rate: float) -> None:
    text = released(f"qwen3.5-{shape}").text
    weights = weight_bytes(text, "BF16")
    seconds = prefill_seconds(text, weights, 8192, H200)
    assert 1000 * seconds == pytest.approx(milliseconds, rel=2e-2)
    assert 8192 / seconds == pytest.approx(rate, rel=2e-2)
    # Pieces read the weights again, which shows as soon as they are bound by it.
    assert prefill_seconds(text, weights, 8192, H200, piece=4096) == pytest.approx(seconds, rel=5e-3)
    assert prefill_seconds(text, weights, 8192, H200, piece=64) > 2 * seconds


def test_pieces_of_a_prompt_are_its_work() -> None:
    """Rows look at the same keys however they are cut: FLOPs add up, the head apart."""
    text = released("qwen3.5-4b").text
    weights = weight_bytes(text, "BF16")
    whole = step_work(text, weights, [Lane(0, 300)])
    parts = sum(
        (
            step_work(text, weights, [Lane(a, b - a, samples=b == 300)])
            for a, b in ((0, 7), (7, 200), (200, 300))
        ),
        Work(),
    )
    assert parts.flops == pytest.approx(whole.flops)


@pytest.mark.parametrize(
    ("shape", "dense", "head"),
    [
        ("35b-a3b", 1.43e9, 0.5086e9),
        ("0.8b", 0.498e9, 0.254e9),
        ("4b", 3.57e9, 0.636e9),
        ("9b", 6.92e9, 1.017e9),
        ("27b", 24.35e9, 1.271e9),
    ],
)
def test_values_of_the_matrices(shape: str, dense: float, head: float) -> None:
    found = parameters(released(f"qwen3.5-{shape}").text)
    assert (found.dense, found.head) == (pytest.approx(dense, rel=1e-3), pytest.approx(head, rel=2e-3))


@pytest.mark.parametrize(
    ("form", "rates"), [("BF16", (705, 1387, 2092, 3756)), ("Q4_K", (2153, 4075, 5834, 9056))]
)
def test_decode_rates_of_a_mixture_of_experts(form: str, rates: tuple[int, ...]) -> None:
    text = released("qwen3.5-35b-a3b").text
    weights = weight_bytes(text, form)
    for rows, rate, experts in zip((1, 4, 16, 64), rates, (8, 31, 102, 222), strict=True):
        assert experts_asked(text, rows) == pytest.approx(experts, abs=0.6)
        work = step_work(text, weights, [Lane(4096)] * rows, state=StateForm.RECURRENT)
        assert rows / work.seconds(H200) == pytest.approx(
            rate, rel=15e-3
        )  # the table leaves out windows of the convolutions


def test_bytes_of_files_are_those_of_their_matrices() -> None:
    """The bundled model's: what a step reads, without vision, norms and the embedding unless it is the head."""
    files = resolve_model(demo_model())
    text = load_config(files).text
    found = file_weight_bytes(files.text.tensors.values(), tied=text.tied)
    values = parameters(text)
    sizes = {info.format: info.nbytes / np.prod(info.shape) for info in files.text.tensors.values()}
    assert values.dense * min(sizes.values()) <= found.dense <= values.dense * 4.05
    assert found.head == files.text.tensors["token_embd.weight" if text.tied else "output.weight"].nbytes
    assert found.expert == 0


def test_a_device_is_measured_by_its_own_copy() -> None:
    speeds = device_speeds(HostDevice(), size=1 << 22)
    assert 1e8 < speeds.bytes_per_second < 1e13 and speeds.flops_per_second > 1e8


def test_the_state_is_read_and_not_written_in_decoding() -> None:
    """luce's form against the recurrence: less to move, by what is written, plus the rows since the last multiple."""
    text = released("qwen3.5-27b").text
    weights = weight_bytes(text, "Q4_K")
    lanes = [Lane(4096)] * 64
    chunk, recurrent = (
        step_work(text, weights, lanes, state=form) for form in (StateForm.CHUNK, StateForm.RECURRENT)
    )
    state = 48 * 48 * 128 * 128 * 4
    assert recurrent.bytes - chunk.bytes == pytest.approx(
        64 * (state * 63 / 64 - 48 * 32.5 * 4 * (16 * 128 + 48 * 129))
    )
    assert chunk.flops == recurrent.flops


def test_a_picture_of_1024_tokens() -> None:
    config = released("qwen3.5-27b")
    work = encode_work(config, 4096)
    assert work.flops == pytest.approx(5.55e12, rel=1e-2)
    assert work.bound(H200) == "FLOPs"


@pytest.mark.parametrize("name", RELEASED)
def test_shapes_hold_together(name: str) -> None:
    config = released(name)
    text, vision = config.text, config.vision
    assert vision is not None and vision.out_hidden == text.hidden and vision.hidden % vision.heads == 0
    assert len(text.full_attention) == text.num_layers == 4 * sum(text.full_attention)
    assert text.value_heads % text.key_heads == 0 and text.heads % text.kv_heads == 0
