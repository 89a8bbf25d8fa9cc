"""What a record batch costs: ``python benchmarks/records.py`` (µs, best of seven; 100-byte values, CreateTime)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from timeit import repeat

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "protocol"), str(HERE / "storage")]

from minibroker_protocol.records import (  # noqa: E402
    Compression,
    Record,
    build_batch,
    crc_ok,
    decode_payload,
    parse_header,
    records_payload,
    validate_records,
)
from minibroker_storage.config import LogConfig  # noqa: E402
from minibroker_storage.origin import Origin  # noqa: E402
from minibroker_storage.validator import validate_and_assign  # noqa: E402

TIME = 1_600_000_000_000
ROUNDS = 7


def microseconds(work: Callable[[], object], times: int) -> float:
    return min(repeat(work, number=times, repeat=ROUNDS)) / times * 1e6


def validate(data: bytearray, config: LogConfig, strict: bool) -> None:
    data[:8] = bytes(8)  # what the last round assigned
    validate_and_assign(
        data,
        base_offset=5,
        now_ms=TIME,
        leader_epoch=1,
        config=config,
        origin=Origin.CLIENT,
        api_version=9,
        strict=strict,
    )


def main() -> None:
    config = LogConfig()
    print("records   bytes   header  +CRC   walk/rec  decode/rec  build/rec  validate  light")
    for count in (1, 10, 150, 1000):
        records = [Record(i, TIME, None, b"v" * 100) for i in range(count)]
        data = build_batch(records)
        header = parse_header(data)
        payload = records_payload(data, 0, header)
        times = max(5, 3000 // count)
        print(
            f"{count:7} {len(data):7}"
            f" {microseconds(lambda data=data: parse_header(data), 20_000):8.2f}"
            f" {microseconds(lambda data=data: crc_ok(data, 0, parse_header(data)), 5000):5.2f}"
            f" {microseconds(lambda p=payload, h=header: validate_records(p, h), times) / count:10.3f}"
            f" {microseconds(lambda p=payload, h=header: decode_payload(p, h), times) / count:11.3f}"
            f" {microseconds(lambda records=records: build_batch(records), times) / count:10.3f}"
            f" {microseconds(lambda data=data: validate(data, config, True), times):9.1f}"
            f" {microseconds(lambda data=data: validate(data, config, False), times):6.1f}"
        )
    records = [Record(i, TIME, None, b"v" * 100) for i in range(1000)]
    for codec in Compression:
        data = build_batch(records, compression=codec)
        header = parse_header(data)
        took = microseconds(lambda data=data, header=header: records_payload(data, 0, header), 50)
        print(f"{codec.name.lower():7} {len(data):7} bytes, payload in {took:.0f} µs")


if __name__ == "__main__":
    main()
