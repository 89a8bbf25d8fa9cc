// The steps with franz-go.
package main

import (
	"cmp"
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

var ctx = context.Background()
var failed error

func begin() error {
	failed = nil
	return client.BeginTransaction()
}

func send(value string, partition int32) {
	record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}
	client.Produce(ctx, record, func(_ *kgo.Record, err error) {
		failed = cmp.Or(err, failed)
		told(value, err)
	})
}

func flush() error { return client.Flush(ctx) }

func commit() error {
	if err := cmp.Or(flush(), failed); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}

func abort() error {
	_ = flush()
	return client.EndTransaction(ctx, kgo.TryAbort)
}
