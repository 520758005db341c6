"""Which addresses may be fetched from: those of the public internet, and with a flag those of private networks.

A name on the list may resolve to anything, by mistake or on purpose: to the server's own machine, to the network behind
it, to the metadata service of a cloud. So every address is held against the special-purpose registries of IANA, and
addresses that carry another one (mapped, NAT64) against that one.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

__all__ = ["is_allowed"]

_PRIVATE_4 = [
    IPv4Network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]
_NEVER_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # Azure's host, a public address that is none
        "169.254.0.0/16",  # link local, where most clouds keep their metadata
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]  # fmt: skip
_PRIVATE_6 = [IPv6Network("::1/128"), IPv6Network("fc00::/7")]
_NEVER_6 = [
    IPv6Network(text)
    for text in (
        "fd00:ec2::/32",  # metadata of AWS
        "fd20:ce::254/128",  # metadata of Google Cloud
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
]
_UNICAST_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def is_allowed(text: str, *, private: bool = False) -> bool:
    """Whether an address may be connected to.

    Args:
        text: as the resolver gives it.
        private: loopback and private networks may be, too; link-local, metadata and multicast addresses never.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _allowed_4(address, private)
    if getattr(address, "scope_id", None):
        return False
    return _allowed_6(address, private)


def _allowed_4(address: IPv4Address, private: bool) -> bool:
    if any(address in network for network in _NEVER_4):
        return False
    return private or not any(address in network for network in _PRIVATE_4)


def _allowed_6(address: IPv6Address, private: bool) -> bool:
    if address.ipv4_mapped is not None:
        return _allowed_4(address.ipv4_mapped, private)
    if address in _NAT64:
        return _allowed_4(IPv4Address(int(address) & 0xFFFFFFFF), private)
    if any(address in network for network in _NEVER_6):
        return False
    return address in _UNICAST_6 or (private and any(address in network for network in _PRIVATE_6))
