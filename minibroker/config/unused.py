"""Kafka 4.4's broker settings that change nothing here: threads, quorum, quotas, Kerberos, tiered storage, share group.

They are accepted, logged once, and shown by DescribeConfigs with Kafka's types and defaults. A server.properties
written for Kafka then starts this broker as well. `unused.txt` has a line for each: name, type, default (- for none, ""
for the empty text), and `dynamic` where it may change while a broker runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from minibroker.config.types import ConfigKey, ConfigType
from minibroker.kernel.package_data import package_text


def _keys() -> Iterator[ConfigKey]:
    for line in package_text(__name__, "unused.txt").splitlines():
        name, kind, default, *dynamic = line.split()
        text = "" if default == '""' else default
        key = ConfigKey(name, ConfigType[kind], None, "Without effect here.", dynamic=bool(dynamic), effect=False)
        yield key if default == "-" else key._replace(default=key.parse(text))


UNUSED_KEYS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _keys()})
