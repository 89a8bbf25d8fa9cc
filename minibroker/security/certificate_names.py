"""The subject of an X.509 certificate as a principal's name: RFC 2253, as Java's ``X500Principal.getName`` writes it.

``ssl.SSLObject.getpeercert`` loses what tells two subjects apart: quoting, the kinds of strings, several values of one
part. The bytes of the certificate have all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0
_FIELDS_BEFORE_SUBJECT: Final = 4
"""serialNumber, signature, issuer, validity."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""RFC 2253's; every other attribute has its dotted number for a name, and its bytes for a value."""
_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: Java reads all of them as UTF-8."""
_ESCAPES: Final = {ord(c): f"\\{c}" for c in ',=+<>#;"\\'} | {0: "\\00"}
_PADDING: Final = " \r"
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd".encode()

_Element = tuple[int, memoryview, memoryview]
"""Tag, content, and the whole of an element."""


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER; "" when it is empty. Raises ValueError for what is not DER."""
    signed = _expect(next(_elements(memoryview(certificate)), None), _SEQUENCE)
    fields = _elements(_expect(next(_elements(signed), None), _SEQUENCE))
    first = next(fields, None)
    before = _FIELDS_BEFORE_SUBJECT if first is not None and first[0] == _VERSION else _FIELDS_BEFORE_SUBJECT - 1
    for _ in range(before):
        next(fields, None)
    parts = _elements(_expect(next(fields, None), _SEQUENCE))
    return ",".join(reversed([_part(_expect(part, _SET)) for part in parts]))


def _part(values: memoryview) -> str:
    """Several values of one part stay in the certificate's order."""
    return "+".join(_value(_expect(value, _SEQUENCE)) for value in _elements(values))


def _value(attribute: memoryview) -> str:
    elements = _elements(attribute)
    number = _dotted(_expect(next(elements, None), _OBJECT_IDENTIFIER))
    value = next(elements, None)
    if value is None or next(elements, None) is not None:
        raise ValueError("an attribute of a name is not a type with one value")
    tag, content, whole = value
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or number}=#{whole.hex()}"
    # Java replaces a surrogate as a whole, Python each of its bytes.
    text = _SURROGATE.sub(_REPLACEMENT, content).decode("utf-8", "replace")
    return f"{keyword}={_escaped(text)}"


def _escaped(text: str) -> str:
    inner = text.strip(_PADDING)
    start = text.index(inner)
    before, after = text[:start], text[start + len(inner) :]
    return _padding(before) + inner.translate(_ESCAPES) + _padding(after)


def _padding(text: str) -> str:
    return "".join(f"\\{c}" for c in text)


def _dotted(encoded: memoryview) -> str:
    """An object identifier as numbers."""
    numbers, number, begins = [], 0, True
    for byte in encoded:
        if begins and byte == 0x80:
            raise ValueError("a number of an object identifier begins with zeros")
        number = number << 7 | byte & 0x7F
        begins = byte < 0x80
        if begins:
            numbers.append(number)
            number = 0
    if not begins or not numbers:
        raise ValueError("an object identifier ends within a number")
    root = min(numbers[0] // 40, 2)
    return ".".join(map(str, (root, numbers[0] - 40 * root, *numbers[1:])))


def _expect(element: _Element | None, tag: int) -> memoryview:
    """The content of an element whose tag is `tag`."""
    if element is None or element[0] != tag:
        raise ValueError(
            f"expected an element with tag {tag:#04x}, got {'none' if element is None else hex(element[0])}"
        )
    return element[1]


def _elements(data: memoryview) -> Iterator[_Element]:
    """What a sequence or set consists of, in order."""
    at = 0
    while at < len(data):
        tag, start = data[at], at + 2
        if tag & 0x1F == 0x1F or start > len(data):
            raise ValueError("an element's head is cut off, or its tag has several bytes")
        size = data[at + 1]
        if size >= 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[at + 2 : start], "big")
            # DER has one way to write a length.
            if start - at - 2 > 4 or start > len(data) or size < 0x80 or not data[at + 2]:
                raise ValueError("the length of an element is not DER")
        if start + size > len(data):
            raise ValueError("an element is cut off")
        yield tag, data[start : start + size], data[at : start + size]
        at = start + size
