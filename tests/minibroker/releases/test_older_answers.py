"""Answers that older releases give otherwise, and the texts: each field of the semantics alone changes one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from member_client import Members

from minibroker.releases.semantics import KAFKA
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

LOGGER, UNKNOWN_OPERATION = 8, 9
PARTITION_LEADERS = 4
"""The first version of AddPartitionsToTxn that partition leaders send."""


def broker(**field: Any) -> Members:
    return Members(semantics=replace(KAFKA, **field))


@pytest.mark.parametrize("version", [2, 0])
def test_for_which_clients_a_leader_adds_a_partition(version: int) -> None:
    client = broker(leaders_add_for_version=version)
    producer_id, epoch = client.producer()
    kind = m.AddPartitionsToTxnRequest
    added = kind.AddPartitionsToTxnTransaction(
        transactional_id="x",
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=False,
        topics=[kind.AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    client.call(kind(transactions=[added]), m.AddPartitionsToTxnResponse, PARTITION_LEADERS)
    metadata = client.broker.coordinators.transactions.describe("x").metadata
    assert metadata.client_transaction_version == version
    client.stop()


@pytest.mark.parametrize("code", ["INCONSISTENT_GROUP_PROTOCOL", "UNKNOWN_SERVER_ERROR"])
def test_a_classic_member_whose_subscription_cannot_be_read(code: str) -> None:
    client = broker(unreadable_subscription=code)
    client.enter("a", server_assignor="range")
    assert client.join(protocols=[("range", b"\0")]).error_code == ErrorCode[code]
    client.stop()


@pytest.mark.parametrize("code", ["INVALID_REQUEST", "UNKNOWN_SERVER_ERROR"])
def test_an_unknown_operation_on_a_logger(code: str) -> None:
    client = broker(unknown_logger_operation=code)
    kind = m.IncrementalAlterConfigsRequest
    change = kind.AlterableConfig(name="root", config_operation=UNKNOWN_OPERATION, value="INFO")
    resource = kind.AlterConfigsResource(resource_type=LOGGER, resource_name="1", configs=[change])
    answer = client.call(kind(resources=[resource], validate_only=False), m.IncrementalAlterConfigsResponse, 1)
    assert answer.responses[0].error_code == ErrorCode[code]
    client.stop()


@pytest.mark.parametrize("listed", [True, False])
def test_whether_describe_transaction_state_is_listed(listed: bool) -> None:
    client = broker(advertise_describe_transaction_state=listed)
    answer = client.call(m.ApiVersionsRequest(), m.ApiVersionsResponse, 0)
    keys = {api.api_key for api in answer.api_keys}
    assert (m.DescribeTransactionStateRequest.__api_key__ in keys) is listed
    client.stop()
