package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func init() { libraries["franz-go"] = library{franzIdempotent, franzTransactional, franzRead} }

type franz struct{ client *kgo.Client }

func franzClient(options ...kgo.Opt) (*kgo.Client, error) {
	if timeout > 0 {
		options = append(options,
			kgo.ProduceRequestTimeout(timeout),
			kgo.RequestTimeoutOverhead(timeout),
			kgo.RecordDeliveryTimeout(timeout*deliveries),
		)
	}
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(servers...),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}, options...)...)
}

func franzIdempotent(context.Context) (sender, error) {
	client, err := franzClient()
	return franz{client}, err
}

func franzTransactional(context.Context) (sender, error) {
	client, err := franzClient(kgo.TransactionalID(transactional))
	return franz{client}, err
}

func (f franz) send(ctx context.Context, value string) error {
	return f.client.ProduceSync(ctx, &kgo.Record{Value: []byte(value)}).FirstErr()
}

func (f franz) begin() error { return f.client.BeginTransaction() }

func (f franz) end(ctx context.Context, commit bool) error {
	return f.client.EndTransaction(ctx, kgo.TransactionEndTry(commit))
}

func (f franz) close() { f.client.Close() }

func franzRead(ctx context.Context, read func(int64, string)) error {
	client, err := franzClient(
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	end, err := franzEnd(ctx, client)
	for next := int64(0); err == nil && next < end; {
		fetches := client.PollFetches(ctx)
		err = fetches.Err()
		fetches.EachRecord(func(record *kgo.Record) {
			next = record.Offset + 1
			if !record.Attrs.IsControl() {
				read(record.Offset, string(record.Value))
			}
		})
	}
	return err
}

func franzEnd(ctx context.Context, client *kgo.Client) (int64, error) {
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic, asked.Partitions = topic, append(asked.Partitions, partition)
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	return response.Topics[0].Partitions[0].Offset, nil
}
