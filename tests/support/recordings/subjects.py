"""Certificates with all kinds of subjects, and the names that Java gives them, kept in a file for tests without a Java.

Run as a program it asks Java and writes the file anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jvm import JVM_TIER, compile_java, run_java

FILE = Path(__file__).parents[2] / "golden" / "subjects-of-java.json"
UTF8, PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1A, 0x1B, 0x1C, 0x1E
CN, SN, SERIAL, C, L, ST, STREET, ORGANIZATION, OU, TITLE = (f"2.5.4.{n}" for n in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
GIVEN_NAME, GENERATION, DN_QUALIFIER, POSTAL_CODE, ORGANIZATION_ID = (f"2.5.4.{n}" for n in (42, 44, 46, 17, 97))
UID, DC = "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"
EMAIL, UNSTRUCTURED = "1.2.840.113549.1.9.1", "1.2.840.113549.1.9.2"

Value = tuple[str, int, bytes]
"""Attribute, tag of the value, content of the value."""


def element(tag: int, *content: bytes) -> bytes:
    """DER."""
    data = b"".join(content)
    size = len(data)
    length = size.to_bytes(max(1, (size.bit_length() + 7) // 8), "big")
    return bytes([tag]) + (length if size < 0x80 else bytes([0x80 | len(length)]) + length) + data


def object_identifier(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    data = b""
    for number in (40 * first + second, *rest):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        data += bytes(reversed(groups))
    return element(0x06, data)


def text(kind: str, value: str, tag: int = UTF8) -> Value:
    return kind, tag, value.encode("utf-16-be" if tag == BMP else "utf-32-be" if tag == UNIVERSAL else "utf-8")


def name(*parts: Iterable[Value]) -> bytes:
    """A Name: a set of values for each part, in the given order."""
    sets = [
        element(0x31, *(element(0x30, object_identifier(kind), element(tag, data)) for kind, tag, data in part))
        for part in parts
    ]
    return element(0x30, *sets)


@cache
def _public_key() -> bytes:
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def certificate(subject: bytes, version: int = 3) -> bytes:
    """A certificate whose signature is of no use; version 1 has no extensions, and names no version."""
    algorithm = element(0x30, object_identifier("1.3.101.112"))
    issuer = name([text(CN, "CA", PRINTABLE)])
    validity = element(0x30, element(0x17, b"260101000000Z"), element(0x17, b"460101000000Z"))
    alternative = element(0x30, element(0x82, b"host.example"))
    extension = element(0x30, object_identifier("2.5.29.17"), element(0x01, b"\xff"), element(0x04, alternative))
    extensions = element(0xA3, element(0x30, extension))
    shown = (element(0xA0, element(0x02, bytes([version - 1]))), extensions) if version > 1 else (b"", b"")
    signed = element(
        0x30, shown[0], element(0x02, b"\x01"), algorithm, issuer, validity, subject, _public_key(), shown[1]
    )
    return element(0x30, signed, algorithm, element(0x03, b"\0" + bytes(64)))


def subjects() -> list[bytes]:
    """Names in DER."""
    corp = [text(ORGANIZATION, "corp")]
    country = [text(C, "SE", PRINTABLE)]
    plain = (
        "alice", "admin,O=corp", 'J"x\\;<>#', "#leading", "a#b", "a=b", "a+b", " both ", "  two  ", " ", "   ", "",
        "\r", "\r\n", "a\nb", "\ttab\t", "a\0b", "\0", "\x01\x7f\x1b[1m", "å ö ü", "Ωμέγα", "😀", "\N{NO-BREAK SPACE}x",
        "e\u0301", "\u202eevil", "\u2028", ",", "\\", "\\,", "\\2C", " , ", "CN=x", "a" * 300, "*.example.com",
        "O'Brien (x) - y/z:?.",
    )  # fmt: skip
    names = [name(corp, [text(CN, value)]) for value in plain]
    names += [
        name(country, corp, [text(OU, "one")], [text(OU, "two, three")], [text(CN, value)]) for value in ("a", ",")
    ]
    names += [
        name([text(kind, "v, w")], corp)
        for kind in (L, ST, STREET, UID, DC, SN, SERIAL, TITLE, GIVEN_NAME, GENERATION, DN_QUALIFIER, POSTAL_CODE)
    ]
    names += [
        name([text(kind, "v")]) for kind in (ORGANIZATION_ID, UNSTRUCTURED, "1.3.6.1.4.1.99999.128.16384", "2.999.3")
    ]
    names += [name(corp, [text(CN, "bob")], [text(EMAIL, "bob@example.com", IA5)])]
    names += [name([text(DC, "com", IA5)], [text(DC, "example", IA5)], [text(CN, "x")])]
    # A value of several parts, in both orders, and one of an attribute without a keyword.
    names += [name(corp, pair) for pair in ([text(CN, "a"), text(UID, "b")], [text(UID, "b"), text(CN, "a")])]
    names += [name([text(CN, "a"), text(EMAIL, "b@c", IA5), text(OU, "d+e")], corp)]
    names += [name([text(CN, "é,=", tag)]) for tag in (PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP)]
    names += [name([text(CN, "a", tag)]) for tag in (PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP)]
    # What is no UTF-8, what is no text, and what is nothing.
    names += [
        name([(CN, tag, data)])
        for tag in (UTF8, T61)
        for data in (b"\xe9x", b"\xed\xa0\x80", b"\xed\xa0A", b"\xf0\x9f\x98", b"\xc0\xaf")
    ]
    names += [
        name([(CN, 0x02, b"\x05")]),
        name([(CN, 0x03, b"\0\x05")]),
        name([(CN, 0x30, b"")]),
        name([(CN, 0x04, b"x")]),
    ]
    names += [name(), name([]), name(corp, []), name([text(CN, "a")], [text(CN, "b")])]
    return names


def names_by_java(certificates: Iterable[bytes], programs: Path) -> list[str | None]:
    """What Java calls the subjects; None where it takes no certificate. programs: where `SubjectNames` is compiled.

    Raises Unavailable.
    """
    lines = "".join(f"{certificate_.hex()}\n" for certificate_ in certificates)
    done = run_java("SubjectNames", extra=(programs,), stdin=lines)
    assert done.returncode == 0, done.stderr
    answers = [line.partition(" ") for line in done.stdout.splitlines()]
    return [bytes.fromhex(subject).decode() if word == "name" else None for word, _, subject in answers]


def read() -> list[tuple[bytes, str | None]]:
    """Subjects in DER with Java's name for each."""
    return [(bytes.fromhex(subject), name) for subject, name in json.loads(FILE.read_text())]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        programs = compile_java([JVM_TIER / "SubjectNames.java"], Path(place))
        names = names_by_java(map(certificate, subjects()), programs)
    rows = [json.dumps([subject.hex(), said]) for subject, said in zip(subjects(), names, strict=True)]
    FILE.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{len(rows)} subjects")


if __name__ == "__main__":
    sys.exit(main())
