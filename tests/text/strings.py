"""Generated text for comparisons: scripts with marks, emoji joiners, digit runs, line ends, special-token text."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence

__all__ = ["SCRIPTS", "generated"]

SCRIPTS = {
    "latin": "The quick brown fox, don't I'LL naïve café œuvre",
    "german": "Straße größer Übermaß heißt",
    "polish": "zażółć gęślą jaźń",
    "vietnamese": "Tiếng Việt có nhiều dấu",
    "greek": "Ελληνικά γλώσσα ἀρχή",
    "cyrillic": "Привет, мир! Ёлка й",
    "hebrew": "שָׁלוֹם עוֹלָם",
    "arabic": "السَّلَامُ عَلَيْكُمْ ١٢٣",
    "devanagari": "नमस्ते दुनिया क्षेत्र १२३",
    "bengali": "বাংলা ভাষা ক্ষ",
    "tamil": "தமிழ் மொழி க்ஷ",
    "thai": "ภาษาไทย สวัสดี น้ำ",
    "burmese": "မြန်မာဘာသာ",
    "khmer": "ភាសាខ្មែរ",
    "tibetan": "བོད་སྐད་",
    "georgian": "ქართული ენა",
    "armenian": "Հայերեն",
    "hangul": "한국어 가나다",
    "kana": "ひらがな カタカナ がぎぐ",
    "han": "你好，世界！汉字漢字",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 1️⃣ 🇩🇪",
    "maths": "∑x²≤∞ ½ Ⅷ ≠ ∉",
    "code": "def f(a, *b): return a[0] += 3.14  # ok\t{x!r}",
}
"""One line per script, some with combining marks."""

_DIGITS = ("0", "42", "1234567890", "3.14", "1,000", "٣٤", "१२")
_GAPS = (" ", "  ", "\n", "\r\n", "\r\n\r\n", "\n\n\n", "\t", " \n ", "\u00a0", "\u3000", "")


def generated(count: int, seed: int, tokens: Sequence[str] = ()) -> list[str]:
    """Texts of mixed pieces, half of them decomposed (NFD)."""
    rng = random.Random(seed)
    texts = []
    for number in range(count):
        parts = []
        for _ in range(rng.randint(1, 8)):
            line = SCRIPTS[rng.choice(list(SCRIPTS))]
            begin = rng.randrange(len(line))
            parts.append(line[begin : begin + rng.randint(1, 20)])
            parts.append(rng.choice(_GAPS))
            if rng.random() < 0.3:
                parts.append(rng.choice(_DIGITS))
            if tokens and rng.random() < 0.5:
                parts.append(rng.choice(list(tokens)))
            if rng.random() < 0.1:
                parts.append("".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(5)))
        text = "".join(parts)
        texts.append(unicodedata.normalize("NFD", text) if number % 2 else text)
    return texts
