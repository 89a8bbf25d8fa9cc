"""Names of certificates' subjects, as Java wrote them."""

from __future__ import annotations

import datetime

import pytest
import subjects
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from subjects import certificate, element, name, text

from minibroker.security.certificate_names import subject_name


def test_subjects_have_the_names_that_java_gives_them() -> None:
    recorded = subjects.read()
    assert len(recorded) >= 50
    assert [subject for subject, _ in recorded] == subjects.subjects()  # else run `python tests/support subjects`
    assert [(s, subject_name(certificate(s))) for s, _ in recorded] == [(s, java) for s, java in recorded]


def test_certificates_of_a_library_are_read() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "SE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "corp, inc"),
            x509.NameAttribute(NameOID.COMMON_NAME, "admin,O=corp"),
        ]
    )
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "CA")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, None)
    )
    assert subject_name(made.public_bytes(Encoding.DER)) == "CN=admin\\,O\\=corp,O=corp\\, inc,C=SE"


def test_a_certificate_of_version_1_is_read() -> None:
    assert subject_name(certificate(name([text(subjects.CN, "a")]), version=1)) == "CN=a"


WHOLE = certificate(name([text(subjects.CN, "a")]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30",
        b"\x31\x00",
        b"\x30\x80" + WHOLE[4:] + b"\0\0",  # a length without end
        b"\x30\x83\0" + WHOLE[2:],  # a length with zeros before it
        certificate(b"\x31\x00"),
        certificate(element(0x30, element(0x30))),
        certificate(name([(subjects.CN, 0x1F, b"a")])),
        certificate(element(0x30, element(0x31, element(0x30, b"\x06\x00", b"\x0c\x01a")))),
        certificate(element(0x30, element(0x31, element(0x30, b"\x06\x02\x55\x84", b"\x0c\x01a")))),
        certificate(element(0x30, element(0x31, element(0x30, b"\x06\x03\x55\x80\x03", b"\x0c\x01a")))),
        certificate(element(0x30, element(0x31, element(0x30, b"\x06\x01\x55")))),
        certificate(element(0x30, element(0x31, element(0x30, b"\x06\x01\x55", b"\x0c\x01a", b"\x0c\x01b")))),
    ],
)
def test_what_is_not_der_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        subject_name(data)


def test_a_certificate_that_is_cut_off_is_refused() -> None:
    for size in range(len(WHOLE) - 1):
        with pytest.raises(ValueError, match=r"cut off|expected|not DER"):
            subject_name(WHOLE[:size])
