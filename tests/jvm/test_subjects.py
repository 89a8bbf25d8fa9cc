"""Names of certificates' subjects, asked of Java."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import subjects
from subjects import CN, EMAIL, OU, UID, Value, certificate, name

from minibroker.security.certificate_names import subject_name

pytestmark = pytest.mark.jvm

SAMPLES = 2000
_ODD = [*',=+<>#;"\\ \r\n\t\0aZ9', "é", "€", "😀", "\u202e"]


def random_subject(rng: Random) -> bytes:
    def value() -> Value:
        kind = rng.choice((CN, CN, OU, UID, EMAIL))
        tag = rng.choice((subjects.UTF8, subjects.PRINTABLE, subjects.T61, subjects.IA5, subjects.BMP, 0x02, 0x04))
        data = "".join(rng.choices(_ODD, k=rng.randrange(6))).encode()
        if rng.random() < 0.3:
            data += bytes(
                rng.choices((0x41, 0x80, 0xA0, 0xBF, 0xC2, 0xED, 0xE0, 0xF0, 0xF4, 0xFF), k=rng.randrange(1, 5))
            )
        return kind, tag, data or b"\0"

    return name(*([value() for _ in range(rng.choice((1, 1, 2)))] for _ in range(rng.randrange(1, 4))))


def test_java_gives_the_recorded_names(programs: Path) -> None:
    found = subjects.names_by_java(map(certificate, subjects.subjects()), programs)
    assert found == [said for _, said in subjects.read()]


def test_java_gives_random_subjects_the_names_that_we_give(programs: Path) -> None:
    rng = Random(2253)
    made = [random_subject(rng) for _ in range(SAMPLES)]
    found = subjects.names_by_java(map(certificate, made), programs)
    differ = [
        (subject.hex(), java, subject_name(certificate(subject)))
        for subject, java in zip(made, found, strict=True)
        if java is not None and subject_name(certificate(subject)) != java
    ]
    assert sum(java is not None for java in found) > SAMPLES // 2
    assert differ[:10] == []
