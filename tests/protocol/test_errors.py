from __future__ import annotations

import pytest

from minibroker_protocol.errors import ApiError, ErrorCode, Malformed

# Kafka 4.4.0: the exceptions of these codes extend RetriableException.
RETRIABLE = {
    *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
    *(100, 103, 106, 122, 123, 133),
}


def test_every_code_of_kafka_is_there() -> None:
    assert [code.value for code in ErrorCode] == list(range(-1, 137))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("UNKNOWN_SERVER_ERROR", -1),
        ("NOT_COORDINATOR", 16),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", 45),
        ("INVALID_PRODUCER_EPOCH", 47),
        ("CONCURRENT_TRANSACTIONS", 51),
        ("KAFKA_STORAGE_ERROR", 56),
        ("UNSTABLE_OFFSET_COMMIT", 88),
        ("PRODUCER_FENCED", 90),
        ("UNKNOWN_TOPIC_ID", 100),
        ("TRANSACTION_ABORTABLE", 120),
        ("SHARE_SESSION_LIMIT_REACHED", 133),
        ("GROUP_DELETION_FAILED", 134),
        ("CONTROLLER_ID_NOT_REGISTERED", 136),
    ],
)
def test_names(name: str, code: int) -> None:
    assert ErrorCode[name] == code


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_retriable(code: ErrorCode) -> None:
    assert code.retriable == (code in RETRIABLE)


def test_names_and_codes_are_those_of_kio() -> None:
    from kio.schema.errors import ErrorCode as KioErrorCode

    # It ends with Kafka 4.3.
    ours = {code.name.lower(): code.value for code in ErrorCode if code <= ErrorCode.SHARE_SESSION_LIMIT_REACHED}
    assert ours == {code.name: code.value for code in KioErrorCode}


def test_a_refusal_says_why() -> None:
    refusal = ApiError(ErrorCode.INVALID_RECORD, "no key", record_errors=[(3, "no key")])
    assert str(refusal) == "INVALID_RECORD: no key"
    assert (refusal.code, refusal.message, refusal.record_errors) == (87, "no key", [(3, "no key")])
    assert str(ApiError(ErrorCode.NONE)) == "NONE"
    assert issubclass(Malformed, ValueError)
