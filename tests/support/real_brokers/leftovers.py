"""What there is on a broker that a run of the conformance suite may have left there."""

from minibroker.client.transactions import TransactionsClient
from minibroker_protocol import messages as m

INTERNAL = {"__consumer_offsets", "__transaction_state"}


def said_to_stay(errors: str) -> int:
    """How many transactional ids the suite said it could not end."""
    lines = [line for line in errors.splitlines() if line.startswith("left behind: ")]
    assert all(" transactional ids in Prepare" in line for line in lines), lines
    return sum(int(line.split()[2]) for line in lines)


def left_on(bootstrap: str) -> list[str]:
    """`topic NAME`, `group NAME`, and `transaction ID STATE` of those that are not at an end."""
    with TransactionsClient(bootstrap) as client:
        topics = {topic.name or "" for topic in client.metadata(None).topics} - INTERNAL
        groups = {
            group.group_id
            for address in client.brokers().values()
            for group in client.ask(address, m.ListGroupsRequest(), m.ListGroupsResponse, 2).groups
        }
        listed = [listed for _, listed in client.list_transactions()]
    ended = {"Empty", "CompleteCommit", "CompleteAbort"}
    return [
        *(f"topic {name}" for name in sorted(topics)),
        *(f"group {name}" for name in sorted(groups)),
        *(
            f"transaction {transaction.transactional_id} {transaction.transaction_state}"
            for transaction in listed
            if transaction.transaction_state not in ended
        ),
    ]
