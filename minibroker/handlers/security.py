"""Authentication and credentials, as a Kafka answers where there is neither.

SaslHandshake (17), SaslAuthenticate (36), DescribeUserScramCredentials (50). Every listener is PLAINTEXT.
"""

from __future__ import annotations

from collections import Counter

from minibroker.handlers.context import RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from minibroker_protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def sasl_handshake(_: RequestContext, __: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """SaslHandshake v0-1: ILLEGAL_SASL_STATE, the listener wants no authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def sasl_authenticate(_: RequestContext, __: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """SaslAuthenticate v0-2: ILLEGAL_SASL_STATE, as for a connection that is through with it."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


def describe_user_scram_credentials(
    _: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """DescribeUserScramCredentials v0: nobody has any. A user asked for by name is RESOURCE_NOT_FOUND, one asked for
    twice DUPLICATE_RESOURCE."""
    asked = Counter(user.name for user in request.users or [])
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message="",
        results=[_refusal(name, twice=count > 1) for name, count in asked.items()],
    )


def _refusal(name: str, *, twice: bool) -> DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    if twice:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
        user=name, error_code=code, error_message=message, credential_infos=[]
    )
