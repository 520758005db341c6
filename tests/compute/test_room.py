"""One allocation that many arrays come from."""

from __future__ import annotations

from luce.compute.room import Room, room_bytes


def test_arrays_stand_one_behind_the_other_and_what_has_no_place_comes_from_elsewhere() -> None:
    elsewhere: list[int] = []

    def other(size: int) -> int:
        elsewhere.append(size)
        return -1

    room = Room(10_000, 2048, other)
    assert [room.take(size) for size in (1, 512, 0, 513)] == [10_000, 10_512, 11_024, 11_024]
    assert room.used == 2048 and room.take(1) == -1 and elsewhere == [1]


def test_a_room_holds_what_it_was_made_for() -> None:
    sizes = [1, 511, 512, 513, 4096, 70_001]
    room = Room(0, room_bytes(sizes), lambda size: -1)
    places = [room.take(size) for size in sizes]
    assert -1 not in places
    for at, size, behind in zip(places, sizes, [*places[1:], room.used], strict=True):
        assert at % 512 == 0 and at + size <= behind
    assert room_bytes(sizes) < sum(sizes) + 512 * len(sizes) + (1 << 17)
