#!/usr/bin/env bash
# kafkajs 2.2.4 (Node 20).
# Expected: no record of an aborted transaction passes the filter of a read_committed consumer, whatever its key is.
# Seen: the filter takes any record with a key of four zero bytes for the abort marker, and lets the rest of the transaction
# pass. It takes the list of aborted transactions to be ordered by their first offsets; a broker orders it by their ends, and of
# two that overlap the records before the later first offset pass.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
node_packages kafkajs@2.2.4
cat > filter.js << 'NODE'
const filter = require('kafkajs/src/consumer/filterAbortedMessages')

const record = (offset, producerId, key) =>
  ({ offset, key: key && Buffer.from(key), batchContext: { producerId, inTransaction: true } })
const shown = (messages, abortedTransactions) =>
  filter({ messages, abortedTransactions }).map((message) => message.offset).join(' ') || 'none'
const marker = [0, 0, 0, 0]

const plain = [record('0', '7', 'a'), record('1', '7', 'b'), record('2', '7', marker)]
console.log('aborted:', shown(plain, [{ producerId: '7', firstOffset: '0' }]))
const zeros = [record('0', '7', marker), record('1', '7', 'b'), record('2', '7', marker)]
console.log('a key of four zero bytes:', shown(zeros, [{ producerId: '7', firstOffset: '0' }]))
// Producer 7 begins first and ends last.
const both = [record('0', '7', 'a'), record('1', '8', 'b'), record('2', '8', marker), record('3', '7', marker)]
const aborted = [{ producerId: '8', firstOffset: '1' }, { producerId: '7', firstOffset: '0' }]
console.log('two that overlap:', shown(both, aborted))
NODE
node filter.js > seen
# Offsets 2 and 3 are the markers, which a later step removes.
same seen << 'EXPECTED'
aborted: 2
a key of four zero bytes: 0 1 2
two that overlap: 0 2 3
EXPECTED
