"""CRC-32C for the playground, where the wheel `crc32c` cannot be: a table, one byte at a time."""

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ 0x82F63B78 * (_byte & 1)
    _TABLE.append(_byte)


def crc32c(data: bytes, value: int = 0) -> int:
    value ^= 0xFFFFFFFF
    for byte in bytes(data):
        value = value >> 8 ^ _TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF
