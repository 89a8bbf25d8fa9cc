"""Exchanges as a capture file that Wireshark reads: each connection as TCP over IP, with checksums left out.

Format: draft-ietf-opsawg-pcapng; link type 228 (LINKTYPE_IPV4) or 229 (LINKTYPE_IPV6).
"""

from __future__ import annotations

import base64
import ipaddress
import struct
from typing import IO, Any

from minibroker.kernel.addresses import Address, parse_address

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_MAGIC = 0x1A2B3C4D
_LINK = {4: 228, 6: 229}
_SYN, _ACK, _PUSH = 0x02, 0x10, 0x08
_MAX_PAYLOAD = 32_000
_OPT_COMMENT, _OPT_END = 1, 0
_INTERFACE_OF = {4: 0, 6: 1}


class PcapngWriter:
    """Writes exchanges, as JSON objects with frames (`Recorded.to_json` and `frames`), to a binary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sent: dict[tuple[Address, Address], int] = {}
        self._block(_SECTION, struct.pack("<IHHq", _MAGIC, 1, 0, -1))
        for version in (4, 6):
            self._block(_INTERFACE, struct.pack("<HHI", _LINK[version], 0, 0))

    def write(self, exchange: dict[str, Any]) -> None:
        """One exchange: a packet, or more, each way. The reasons of refusals are the comment of the answer."""
        client, server = _address(exchange["client"]), _address(exchange["server"])
        began = exchange["time_ms"] * 1000
        if (client, server) not in self._sent:
            self._open(client, server, began)
        request, response = exchange.get("request_frame"), exchange.get("response_frame")
        fault = f"fault {exchange['fault']}" if exchange["fault"] else ""
        if request is not None:
            self._send(client, server, base64.b64decode(request), began, fault)
        if response is not None:
            comment = "; ".join([*exchange["errors"], *exchange["reasons"], *([fault] if fault else [])])
            self._send(server, client, base64.b64decode(response), began + round(exchange["took_ms"] * 1000), comment)

    def _open(self, client: Address, server: Address, time_us: int) -> None:
        self._sent[client, server] = self._sent[server, client] = 0
        self._packet(client, server, _SYN, b"", time_us, "")
        self._sent[client, server] = 1
        self._packet(server, client, _SYN | _ACK, b"", time_us, "")
        self._sent[server, client] = 1

    def _send(self, source: Address, target: Address, frame: bytes, time_us: int, comment: str) -> None:
        data = len(frame).to_bytes(4, "big") + frame
        for start in range(0, len(data), _MAX_PAYLOAD):
            part = data[start : start + _MAX_PAYLOAD]
            self._packet(source, target, _ACK | _PUSH, part, time_us, comment if start == 0 else "")
            self._sent[source, target] += len(part)

    def _packet(self, source: Address, target: Address, flags: int, data: bytes, time_us: int, comment: str) -> None:
        sequence = self._sent[source, target] % (1 << 32)
        acknowledged = self._sent[target, source] % (1 << 32) if flags & _ACK else 0
        tcp = struct.pack(">HHIIBBHHH", source[1], target[1], sequence, acknowledged, 5 << 4, flags, 65535, 0, 0)
        packet = _ip(source[0], target[0], tcp + data)
        version = packet[0] >> 4
        head = struct.pack(
            "<IIIII", _INTERFACE_OF[version], time_us >> 32, time_us & 0xFFFFFFFF, len(packet), len(packet)
        )
        self._block(_PACKET, head + _padded(packet) + _comment(comment))

    def _block(self, kind: int, body: bytes) -> None:
        size = struct.pack("<I", len(body) + 12)
        self._file.write(struct.pack("<I", kind) + size + body + size)


def _ip(source: str, target: str, segment: bytes) -> bytes:
    a, b = ipaddress.ip_address(source), ipaddress.ip_address(target)
    if a.version == 4:
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000, 64, 6, 0)
    else:
        head = struct.pack(">IHBB", 6 << 28, len(segment), 6, 64)
    return head + a.packed + b.packed + segment


def _comment(text: str) -> bytes:
    if not text:
        return b""
    data = text.encode()[:60_000]
    return struct.pack("<HH", _OPT_COMMENT, len(data)) + _padded(data) + struct.pack("<HH", _OPT_END, 0)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _address(text: str) -> Address:
    host, port = parse_address(text, least_port=0, any_host=True)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        host = "127.0.0.1"  # a connection that is not a socket
    return host, port
