"""AlterUserScramCredentials (51) at the controller (Kafka's ``ScramControlManager``, KIP-554)."""

from __future__ import annotations

import hmac
from hashlib import new as new_hash

from minibroker.controller.state import ControllerState, Steps
from minibroker.security.credentials import MIN_SALT_BYTES, SCRAM_HASHES, SCRAM_MECHANISMS, ScramCredential
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

_MIN_ITERATIONS, _MAX_ITERATIONS = 4096, 16384
_NAMES = {number: name for name, number in SCRAM_MECHANISMS.items()}
_Request = m.AlterUserScramCredentialsRequest
_Change = _Request.ScramCredentialDeletion | _Request.ScramCredentialUpsertion
_Result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Refusal = tuple[ErrorCode, str | None]
_TWICE: _Refusal = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


class ScramControl:
    """Changes the SCRAM credentials of the image. A user that a request names twice is refused, whatever the
    mechanisms; the others are changed."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def alter(self, request: _Request) -> Steps[m.AlterUserScramCredentialsResponse]:
        """One result for each user. UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND,
        DUPLICATE_RESOURCE. Kafka's order of results is that of a hash map."""
        refusals: dict[str, _Refusal] = {}
        accepted: dict[str, _Change] = {}
        changes: list[_Change] = [*request.deletions, *request.upsertions]
        for change in changes:
            yield None
            if change.name in refusals:
                continue
            refusal = _TWICE if accepted.pop(change.name, None) is not None else self._refusal(change)
            if refusal is None:
                accepted[change.name] = change
            else:
                refusals[change.name] = refusal
        results = []
        for name, change in accepted.items():
            yield None
            mechanism = _NAMES[change.mechanism]
            if isinstance(change, _Request.ScramCredentialDeletion):
                self._state.remove_scram_credential(mechanism, name)
            else:
                self._state.set_scram_credential(_credential(change, mechanism))
            results.append(_Result(user=name))
        results += [_Result(user=name, error_code=code, error_message=text) for name, (code, text) in refusals.items()]
        return m.AlterUserScramCredentialsResponse(results=results)

    def _refusal(self, change: _Request.ScramCredentialDeletion | _Request.ScramCredentialUpsertion) -> _Refusal | None:
        if not change.name:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
        mechanism = _NAMES.get(change.mechanism)
        if mechanism is None:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
        if isinstance(change, _Request.ScramCredentialDeletion):
            if (mechanism, change.name) in self._state.image.scram_credentials:
                return None
            return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        if change.iterations < _MIN_ITERATIONS:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
        if change.iterations > _MAX_ITERATIONS:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        if not change.salted_password:  # a key that Java does not take
            return ErrorCode.UNKNOWN_SERVER_ERROR, None
        if len(change.salt) < MIN_SALT_BYTES:  # no client could log in with it
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"minibroker takes no salt below {MIN_SALT_BYTES} bytes"
        return None


def _credential(change: _Request.ScramCredentialUpsertion, mechanism: str) -> ScramCredential:
    """What the server keeps of a salted password (RFC 5802, Kafka's ScramFormatter)."""
    digest = SCRAM_HASHES[mechanism]
    client_key = hmac.digest(change.salted_password, b"Client Key", digest)
    stored_key = new_hash(digest, client_key).digest()
    server_key = hmac.digest(change.salted_password, b"Server Key", digest)
    return ScramCredential(change.name, mechanism, change.salt, stored_key, server_key, change.iterations)
