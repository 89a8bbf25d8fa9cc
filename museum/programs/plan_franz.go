// A plan with franz-go.
package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type franz struct {
	client *kgo.Client
	failed error
}

var ctx = context.Background()

func (f *franz) open(identity string) error {
	var own struct{ RequestSeconds, RetrySeconds float64 }
	settings(&own)
	options := []kgo.Opt{
		kgo.SeedBrokers(servers), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
	}
	if identity != "" {
		options = append(options, kgo.TransactionalID(identity))
	}
	if own.RequestSeconds > 0 {
		options = append(options, kgo.RequestTimeoutOverhead(time.Duration(own.RequestSeconds*float64(time.Second))))
	}
	if own.RetrySeconds > 0 {
		options = append(options, kgo.RetryTimeout(time.Duration(own.RetrySeconds*float64(time.Second))))
	}
	if f.client != nil {
		f.client.Close()
	}
	var err error
	f.client, err = kgo.NewClient(options...)
	return err
}

func (f *franz) begin() error { f.failed = nil; return f.client.BeginTransaction() }

func (f *franz) send(value string, partition int32, acked func(error)) {
	record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}
	f.client.Produce(ctx, record, func(_ *kgo.Record, err error) {
		if err != nil {
			f.failed = err
		}
		acked(err)
	})
}

func (f *franz) flush() error { return f.client.Flush(ctx) }

func (f *franz) commit() error {
	if err := f.flush(); err != nil || f.failed != nil {
		return f.failed
	}
	return f.client.EndTransaction(ctx, kgo.TryCommit)
}

func (f *franz) abort() error { _ = f.flush(); return f.client.EndTransaction(ctx, kgo.TryAbort) }

func main() { follow(&franz{}) }
