"""SCRAM credentials: DescribeUserScramCredentials (50), AlterUserScramCredentials (51).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import bytes_, f, int8, int16, int32, string
from minibroker_protocol.structs import Struct


class DescribeUserScramCredentialsRequest(Request, key=50, versions="0", flexible="0+"):
    """Ask for the SCRAM credentials of users."""

    class UserName(Struct):
        name: string = f(entity="user")

    users: list[UserName] | None = f(nullable="0+")


class DescribeUserScramCredentialsResponse(Response, key=50, versions="0", flexible="0+"):
    """Mechanisms and iteration counts of each user."""

    class CredentialInfo(Struct):
        mechanism: int8
        iterations: int32

    class DescribeUserScramCredentialsResult(Struct):
        user: string = f(entity="user")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default="", error_message=True)
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = f(default=[])

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default="", error_message=True)
    results: list[DescribeUserScramCredentialsResult]


class AlterUserScramCredentialsRequest(Request, key=51, versions="0", flexible="0+"):
    """Change SCRAM credentials."""

    class ScramCredentialDeletion(Struct):
        name: string = f(entity="user")
        mechanism: int8

    class ScramCredentialUpsertion(Struct):
        name: string = f(entity="user")
        mechanism: int8
        iterations: int32
        salt: bytes_ = f(secret=True)
        salted_password: bytes_ = f(secret=True)

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResponse(Response, key=51, versions="0", flexible="0+"):
    """Whether each user's credentials were changed."""

    class AlterUserScramCredentialsResult(Struct):
        user: string = f(entity="user")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    results: list[AlterUserScramCredentialsResult]
