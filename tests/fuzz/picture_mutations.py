"""Picture files and their URLs, nearly right."""

from __future__ import annotations

import base64
import struct
import zlib
from random import Random

from tests.fuzz.corpus import data_url, pictures

__all__ = ["any_picture", "any_url"]


def any_picture(random: Random) -> tuple[str, bytes]:
    """(media type, file), mostly a broken one."""
    kind, data = random.choice(pictures())
    if random.random() < 0.25:
        return kind, data
    if data.startswith(b"\x89PNG") and random.random() < 0.5:
        return kind, _other_chunks(data, random)
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 30))):
        if not found:
            break
        at = random.choice((random.randrange(len(found)), random.randrange(min(len(found), 64))))
        choice = random.randrange(6)
        if choice <= 1:
            found[at] = random.choice((0, 255, 0x80, random.randrange(256)))
        elif choice == 2:
            found[at : at + 4] = random.choice(
                (b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00")
            )
        elif choice == 3:
            del found[at : at + random.choice((1, 4, 100))]
        elif choice == 4:
            found[at:at] = random.randbytes(random.choice((1, 4, 200)))
        else:
            found = found[: max(at, 1)]
    return kind, bytes(found)


def _other_chunks(data: bytes, random: Random) -> bytes:
    """A PNG whose chunks are right one by one, and their contents or order are not."""
    chunks = []
    place = 8
    while place + 12 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        chunks.append([data[place + 4 : place + 8], bytearray(data[place + 8 : place + 8 + length])])
        place += 12 + length
    for _ in range(random.choice((1, 1, 3))):
        chunk = random.choice(chunks)
        choice = random.randrange(6)
        if choice <= 1 and chunk[1]:
            chunk[1][random.randrange(len(chunk[1]))] = random.randrange(256)
        elif choice == 2:
            chunks.remove(chunk)
            chunks.insert(random.randrange(len(chunks) + 1), chunk)
        elif choice == 3:
            chunks.append(chunk)
        elif choice == 4:
            chunk[0] = random.choice(
                (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"zTXt", b"iCCP", b"eXIf", b"acTL", b"fdAT")
            )
        elif len(chunks) > 1:
            chunks.remove(chunk)
    found = data[:8]
    for name, content in chunks:
        found += (
            struct.pack(">I", len(content))
            + name
            + bytes(content)
            + struct.pack(">I", zlib.crc32(name + content))
        )
    return found


def any_url(random: Random) -> str:
    """A picture's URL, sometimes a broken one."""
    kind, data = any_picture(random)
    url = data_url(kind, data)
    if random.random() < 0.75:
        return url
    at = random.randrange(len(url) + 1)
    return random.choice(
        (
            url[:at],
            url[:at] + random.choice(("=", "\n", " ", "é", "%41", "-_", ",", ";", "\0")) + url[at:],
            url.replace("base64", random.choice(("", "BASE64", "base32", "base64;base64"))),
            url.replace("image/", random.choice(("", "text/", "image//", "IMAGE/"))),
            url.upper(),
            "data:," + url,
            url.rstrip("="),
            "data:image/png;" + "a=b;" * 600 + "base64," + url.partition(",")[2],
            base64.b64encode(data).decode(),
            random.choice(
                ("http://127.0.0.1:9/x.png", "https://[::1]/", "file:///etc/passwd", "blob:x", "//x", "")
            ),
        )
    )
