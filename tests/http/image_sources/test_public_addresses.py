"""Addresses that are never connected to, those that are with a flag, and those that always may be."""

from __future__ import annotations

import pytest

from luce.http.image_sources.public_addresses import is_allowed

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1",
    "192.167.0.1", "198.17.0.1", "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
    "100.127.255.255", "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "::ffff:7f00:1",
    "64:ff9b::7f00:1", "64:ff9b::a00:1",
]  # fmt: skip
NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.192",
    "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.9", "224.0.0.1",
    "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "fe80::1", "fe80::1%1", "fe80::1%eth0", "fec0::1",
    "ff02::1", "fd00:ec2::254", "fd20:ce::254", "2001::1", "2001:0:4136:e378::1", "2001:db8::1", "2002:7f00:1::",
    "2002:808:808::1", "3fff::1", "100::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1",
    "::127.0.0.1", "::ffff:0:127.0.0.1", "4000::1", "5f00::1", "", "localhost", "127.1", "0x7f000001", "1.2.3.4/8",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_allowed(address) and is_allowed(address, private=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_private(address: str) -> None:
    assert not is_allowed(address) and is_allowed(address, private=True)


@pytest.mark.parametrize("address", NEVER)
def test_never(address: str) -> None:
    assert not is_allowed(address) and not is_allowed(address, private=True)
