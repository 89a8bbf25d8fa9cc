// Commits two transactions, and reads both.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

func main() {
	ctx, client := context.Background(), kafka.Client{Addr: kafka.TCP(os.Getenv("BOOTSTRAP_SERVERS"))}
	history, _ := os.Create(os.Getenv("MINIBROKER_HISTORY"))
	tell := func(form string, values ...any) { fmt.Fprintf(history, `{"topic": "orders", `+form+"}\n", values...) }
	made, _ := client.InitProducerID(ctx, &kafka.InitProducerIDRequest{TransactionalID: "tx", TransactionTimeoutMs: 60000})
	id, epoch := made.Producer.ProducerID, made.Producer.ProducerEpoch
	for n, value := range []string{"a", "b"} {
		client.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{TransactionalID: "tx", ProducerID: id, ProducerEpoch: epoch, Topics: map[string][]kafka.AddPartitionToTxn{"orders": {{Partition: 0}}}})
		var batch bytes.Buffer // its Produce knows no transactions: id, epoch and sequence are written into the batch
		(&protocol.RecordSet{Version: 2, Attributes: protocol.Transactional, Records: protocol.NewRecordReader(protocol.Record{Value: protocol.NewBytes([]byte(value))})}).WriteTo(&batch)
		producer := binary.BigEndian.AppendUint64(nil, uint64(id))
		copy(batch.Bytes()[4+43:], append(producer, 0, byte(epoch), 0, 0, 0, byte(n)))
		binary.BigEndian.PutUint32(batch.Bytes()[4+17:], crc32.Checksum(batch.Bytes()[4+21:], crc32.MakeTable(crc32.Castagnoli)))
		tell(`"event": "send", "value": "%x", "transaction": %d`, value, n)
		client.RawProduce(ctx, &kafka.RawProduceRequest{Topic: "orders", RequiredAcks: kafka.RequireAll, TransactionalID: "tx", RawRecords: protocol.RawRecordSet{Reader: &batch}})
		client.EndTxn(ctx, &kafka.EndTxnRequest{TransactionalID: "tx", ProducerID: id, ProducerEpoch: epoch, Committed: true})
		tell(`"event": "end", "transaction": %d, "outcome": "commit"`, n)
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{client.Addr.String()}, Topic: "orders"})
	for value := ""; value != "62"; { // "b"
		message, _ := reader.ReadMessage(ctx)
		value = fmt.Sprintf("%x", message.Value)
		tell(`"event": "read", "value": "%s", "partition": 0, "offset": %d`, value, message.Offset)
	}
}
