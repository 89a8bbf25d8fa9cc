"""What the producer checks cost an append: python benchmarks/producer_state.py (µs, best of five)."""

from time import perf_counter

from minibroker_protocol.records import BatchHeader
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import ProducerRules, ProducerStateManager

BATCHES = 100_000
TRANSACTIONAL = 0x10


def headers(producer_id: int, attributes: int) -> list[BatchHeader]:
    return [
        BatchHeader(i, 100, 0, 2, 0, attributes, 0, 1000, 1000, producer_id, 0, i if producer_id >= 0 else -1, 1)
        for i in range(BATCHES)
    ]


def run(producer_id: int, attributes: int = 0) -> float:
    best = float("inf")
    batches = headers(producer_id, attributes)
    for _ in range(5):
        producers = ProducerStateManager(ProducerRules(verification_enabled=False))
        start = perf_counter()
        for header in batches:
            if header.producer_id >= 0 and producers.find_duplicate(header) is None:
                append = producers.prepare(header, origin=Origin.CLIENT)
                if append is not None:
                    producers.commit(append, 1000)
        best = min(best, perf_counter() - start)
    return best / BATCHES * 1e6


def main() -> None:
    print(f"no producer id            {run(-1):6.2f}")
    print(f"idempotent, in sequence   {run(7):6.2f}")
    print(f"in an open transaction    {run(7, TRANSACTIONAL):6.2f}")


if __name__ == "__main__":
    main()
