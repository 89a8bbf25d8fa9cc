"""Reasons for refusals of which a handler made no note.

Handlers that know more than the answer says call `RequestContext.refused` themselves. For other refusals the reason is
read from the answer: the message beside the code, where the API has one, else the rule behind the code and the
request's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from minibroker.requests.answered_errors import AnsweredError, looked_through, may_err
from minibroker.requests.answers import follow
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker.requests.slices import in_slices_of
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

RULES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "another partition of the request was refused, so nothing was done for any",
    ErrorCode.UNKNOWN_TOPIC_ID: "no topic has this id",
    ErrorCode.LEADER_NOT_AVAILABLE: "no replica of the partition that may lead it is alive",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a topic is named by 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are not as many brokers as replicas are wanted",
    ErrorCode.INVALID_REQUEST: "the request is not well-formed",
    ErrorCode.UNSUPPORTED_VERSION: "the version of the request does not know what it asks for, or the broker does not",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still reading its log",
    ErrorCode.NOT_COORDINATOR: "another broker coordinates it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator's log cannot be written to",
    ErrorCode.INVALID_GROUP_ID: "the group id is empty",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read the topic",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member",
    ErrorCode.MEMBER_ID_REQUIRED: "a new member has to come again with the id it is given here",
    ErrorCode.FENCED_INSTANCE_ID: "another member has taken over the group instance id",
    ErrorCode.ILLEGAL_GENERATION: "the group is in another generation",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is choosing its next generation",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group's protocol type, or all its protocols, are others",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has group.max.size members",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata is longer than offset.metadata.max.bytes",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction with an offset of this partition has not ended",
    ErrorCode.ILLEGAL_SASL_STATE: "the listener is PLAINTEXT and wants no authentication",
    ErrorCode.UNKNOWN_SERVER_ERROR: "the coordinator failed; its log says how",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no entry allows the client this with the topic, or one denies it",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "no entry allows the client this with the group, or one denies it",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "no entry allows the client this with the cluster, or one denies it",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "no entry allows the client this with the transactional id, or one"
    " denies it",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "no entry allows the client this with the token, or one denies it",
    ErrorCode.REBOOTSTRAP_REQUIRED: "the client means another cluster, or another broker of this one",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas",
}
"""The rule behind a code that comes without a message."""

_STRUCTS_OF_AN_ELEMENT: Final = 8
"""Structs of an answer (topics, partitions) that are read in the time of one element of other work."""
_SAID: Final = frozenset({"groupId", "memberId", "groupInstanceId", "generation", "resourceType"})
"""Entities that a reason names beside the rule."""


class Explain:
    """`Link` that notes every refusal in an answer unless the handler noted it."""

    def around(self, api: Api, onward: Handler) -> Handler:
        if not api.reads_answer:
            return onward

        response = api.response
        errs = may_err(response)

        def handle(ctx: RequestContext, request: Any) -> Answer:
            answer = onward(ctx, request)
            if type(answer) is response and not errs(answer):  # as most are: at once
                return answer
            return follow(answer, partial(noted, ctx, request))

        def noted(ctx: RequestContext, request: Request, answer: Any) -> Answer:
            return note_errors(ctx, request, answer) if type(answer) is response and errs(answer) else answer

        return handle


def note_errors(ctx: RequestContext, request: Request, answer: Response) -> Answer:
    """Remember the errors of `answer` that have no reason yet, and return it."""
    noted = frozenset(ctx.noted or ())  # as it is now: one code may stand at several places

    def note(some: Sequence[AnsweredError | None]) -> None:
        for error in some:
            if error is not None and error.code not in noted:
                code = ErrorCode(error.code)
                reason = ApiError(code, error.message or _reason(ctx, code, request))
                ctx.refused(error.subject or "the request", reason)

    return in_slices_of(ctx, looked_through(answer), note, lambda: answer, few=_STRUCTS_OF_AN_ELEMENT)


def _reason(ctx: RequestContext, code: ErrorCode, request: Request) -> str:
    rule = RULES.get(code, "")
    if code.name.endswith("_AUTHORIZATION_FAILED"):
        return f"{rule}: {ctx.connection.principal} of {ctx.connection.client_host}"
    named = [field.name for field in request.__fields__ if field.entity in _SAID]
    said = ", ".join(f"{name}={getattr(request, name)!r}" for name in named)
    return f"{rule}; the request said {said}" if rule and said else rule
