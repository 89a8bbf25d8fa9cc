"""Authentication and credentials: SaslHandshake (17), SaslAuthenticate (36), DescribeUserScramCredentials (50).

On a SASL listener the two first carry the exchange of `security.sasl`; on any other, and once it is over, they are
refused. SCRAM credentials in the metadata are those that clients have set (`controller.scram`), and those of a Kafka
whose directory was taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker.security.credentials import SCRAM_MECHANISMS, ScramCredential
from minibroker.security.sasl import AuthenticationFailed, SaslState
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_Result = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def sasl_handshake(ctx: RequestContext, request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
    """SaslHandshake v0-1: the mechanism for what follows; UNSUPPORTED_SASL_MECHANISM ends the connection.

    ILLEGAL_SASL_STATE on a listener without SASL, and once the client is authenticated.
    """
    authentication = ctx.connection.authentication
    if authentication is None or authentication.state is not SaslState.HANDSHAKE:
        return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    code = ErrorCode.NONE
    if not authentication.handshake(request.mechanism, ctx.api_version):
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        ctx.refused(request.mechanism, ApiError(code, f"the listener offers {authentication.mechanisms}"))
    return m.SaslHandshakeResponse(error_code=code, mechanisms=authentication.mechanisms)


def sasl_authenticate(ctx: RequestContext, request: m.SaslAuthenticateRequest) -> m.SaslAuthenticateResponse:
    """SaslAuthenticate v0-2: the mechanism's next token; SASL_AUTHENTICATION_FAILED ends the connection.

    ILLEGAL_SASL_STATE on a listener without SASL, and once the client is authenticated.
    """
    authentication = ctx.connection.authentication
    if authentication is None or authentication.state is not SaslState.AUTHENTICATE:
        return _not_authenticated(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
        )
    try:
        answer = authentication.token(bytes(request.auth_bytes))
    except AuthenticationFailed as error:
        refusal = ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, error.reason)
        ctx.refused(ctx.connection.client_host, refusal)
        return _not_authenticated(refusal.code, str(error))
    return m.SaslAuthenticateResponse(auth_bytes=answer)


def _not_authenticated(code: ErrorCode, message: str) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=code, error_message=message)


def describe_user_scram_credentials(ctx: RequestContext, request: m.DescribeUserScramCredentialsRequest) -> Answer:
    """DescribeUserScramCredentials v0: mechanisms and iterations of the users in the metadata, of all where none is
    named. A missing user is RESOURCE_NOT_FOUND, one that is named twice DUPLICATE_RESOURCE."""
    held: dict[str, list[m.DescribeUserScramCredentialsResponse.CredentialInfo]] = {}
    results: list[_Result] = []

    def look_up(some: Sequence[ScramCredential]) -> None:
        for credential in some:
            held.setdefault(credential.user, []).append(
                m.DescribeUserScramCredentialsResponse.CredentialInfo(
                    mechanism=SCRAM_MECHANISMS[credential.mechanism], iterations=credential.iterations
                )
            )

    def answer(some: Sequence[tuple[str, int]]) -> None:
        for name, count in some:
            if count == 1 and name in held:
                infos = sorted(held[name], key=lambda info: info.mechanism)
                results.append(_Result(user=name, credential_infos=infos))
            else:
                results.append(_refusal(name, twice=count > 1))

    def answer_all() -> Answer:
        counts = Counter(user.name for user in request.users or []) or dict.fromkeys(held, 1)
        response = m.DescribeUserScramCredentialsResponse(results=results)
        return in_slices(ctx, list(counts.items()), answer, lambda: response, keep=False)

    return in_slices(ctx, list(ctx.broker.image.scram_credentials.values()), look_up, answer_all, keep=False)


def _refusal(name: str, *, twice: bool) -> _Result:
    if twice:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return _Result(user=name, error_code=code, error_message=message)
