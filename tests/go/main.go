// franz-go against the broker named by the first argument: one line `ok NAME` or `FAIL NAME: why` a check.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const patience = 30 * time.Second

var bootstrap string

func main() {
	bootstrap = os.Args[1]
	run("idempotent_produce", idempotentProduce)
	run("commit_and_abort", commitAndAbort)
	run("second_producer_fences_first", fencing)
	run("group_transact_session", groupTransactSession)
	run("group_rebalances", groupRebalances)
	run("topic_deleted", topicDeleted)
}

func run(name string, check func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if err := check(ctx); err != nil {
		fmt.Printf("FAIL %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok %s\n", name)
}

func client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, options...)...)
}

func unique(prefix string) string {
	return fmt.Sprintf("%s-%d", prefix, time.Now().UnixNano())
}

func createTopic(ctx context.Context, partitions int32) (string, error) {
	c, err := client()
	if err != nil {
		return "", err
	}
	defer c.Close()
	name := unique("franz")
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, -1
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, c)
	if err != nil {
		return "", err
	}
	return name, kerr.ErrorForCode(response.Topics[0].ErrorCode)
}

// values reads partition 0 from its start to the end that the isolation level shows.
func values(ctx context.Context, topic string, isolation kgo.IsolationLevel) ([]string, error) {
	c, err := client(
		kgo.FetchIsolationLevel(isolation),
		kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	end, err := endOffset(ctx, c, topic)
	if err != nil {
		return nil, err
	}
	var read []string
	for next := int64(0); next < end; {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return read, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			next = record.Offset + 1
			if !record.Attrs.IsControl() {
				read = append(read, string(record.Value))
			}
		})
	}
	return read, nil
}

func endOffset(ctx context.Context, c *kgo.Client, topic string) (int64, error) {
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic, asked.Partitions = topic, append(asked.Partitions, partition)
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(ctx, c)
	if err != nil {
		return 0, err
	}
	found := response.Topics[0].Partitions[0]
	return found.Offset, kerr.ErrorForCode(found.ErrorCode)
}

func equal(what string, expected, found any) error {
	if fmt.Sprint(expected) != fmt.Sprint(found) {
		return fmt.Errorf("%s: expected %v, found %v", what, expected, found)
	}
	return nil
}

func expectValues(ctx context.Context, topic string, isolation kgo.IsolationLevel, expected ...string) error {
	found, err := values(ctx, topic, isolation)
	return errors.Join(err, equal("values", expected, found))
}

func idempotentProduce(ctx context.Context) error {
	topic, err := createTopic(ctx, 1)
	if err != nil {
		return err
	}
	c, err := client(kgo.MaxBufferedRecords(1000), kgo.ProducerBatchMaxBytes(4096))
	if err != nil {
		return err
	}
	defer c.Close()
	var records []*kgo.Record
	var expected []string
	for i := range 500 {
		expected = append(expected, fmt.Sprint(i))
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(expected[i])})
	}
	for i, result := range c.ProduceSync(ctx, records...) {
		if result.Err != nil || result.Record.Offset != int64(i) {
			return fmt.Errorf("record %d: offset %d, %w", i, result.Record.Offset, result.Err)
		}
	}
	return expectValues(ctx, topic, kgo.ReadCommitted(), expected...)
}

func commitAndAbort(ctx context.Context) error {
	topic, err := createTopic(ctx, 1)
	if err != nil {
		return err
	}
	c, err := client(kgo.TransactionalID(unique("tx")))
	if err != nil {
		return err
	}
	defer c.Close()
	for _, word := range []string{"kept", "dropped", "kept too"} {
		if err := c.BeginTransaction(); err != nil {
			return err
		}
		sent := c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(word)}).FirstErr()
		ended := c.EndTransaction(ctx, kgo.TransactionEndTry(word != "dropped"))
		if err := errors.Join(sent, ended); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return errors.Join(
		expectValues(ctx, topic, kgo.ReadCommitted(), "kept", "kept too"),
		expectValues(ctx, topic, kgo.ReadUncommitted(), "kept", "dropped", "kept too"),
	)
}

func fencing(ctx context.Context) error {
	topic, err := createTopic(ctx, 1)
	if err != nil {
		return err
	}
	id := unique("tx")
	first, err := transactionWith(ctx, id, topic, "of the zombie")
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := transactionWith(ctx, id, topic, "of the living")
	if err != nil {
		return err
	}
	defer second.Close()
	if err := second.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	sent := first.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("too late")}).FirstErr()
	ended := first.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(sent, kerr.InvalidProducerEpoch) && !errors.Is(sent, kerr.ProducerFenced) {
		return fmt.Errorf("expected to be fenced, found %v, %v", sent, ended)
	}
	return expectValues(ctx, topic, kgo.ReadCommitted(), "of the living")
}

// transactionWith opens a transaction and leaves it open with one record in it.
func transactionWith(ctx context.Context, id, topic, value string) (*kgo.Client, error) {
	c, err := client(kgo.TransactionalID(id))
	if err != nil {
		return nil, err
	}
	err = c.BeginTransaction()
	if err == nil {
		err = c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr()
	}
	if err != nil {
		c.Close()
	}
	return c, err
}

// groupTransactSession moves records from one topic to another with the offsets in the transaction; every second try aborts.
func groupTransactSession(ctx context.Context) error {
	source, err := createTopic(ctx, 1)
	if err != nil {
		return err
	}
	target, err := createTopic(ctx, 1)
	if err != nil {
		return err
	}
	feeder, err := client()
	if err != nil {
		return err
	}
	defer feeder.Close()
	var expected []string
	for i := range 30 {
		expected = append(expected, fmt.Sprint(i))
		record := &kgo.Record{Topic: source, Value: []byte(expected[i])}
		if err := feeder.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap), kgo.TransactionalID(unique("tx")), kgo.ConsumerGroup(unique("group")),
		kgo.ConsumeTopics(source), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for moved, try := 0, 0; moved < len(expected); try++ {
		count, err := move(ctx, session, target, try%2 == 1)
		if err != nil {
			return err
		}
		moved += count
	}
	return expectValues(ctx, target, kgo.ReadCommitted(), expected...)
}

// move takes at most seven records through one transaction and says how many of them are committed.
func move(ctx context.Context, session *kgo.GroupTransactSession, target string, commit bool) (int, error) {
	fetches := session.PollRecords(ctx, 7)
	if err := fetches.Err(); err != nil {
		return 0, err
	}
	if err := session.Begin(); err != nil {
		return 0, err
	}
	for _, record := range fetches.Records() {
		session.Produce(ctx, &kgo.Record{Topic: target, Value: record.Value}, nil)
	}
	if err := session.Client().Flush(ctx); err != nil {
		return 0, err
	}
	committed, err := session.End(ctx, kgo.TransactionEndTry(commit))
	if err != nil || !committed {
		return 0, err
	}
	return fetches.NumRecords(), nil
}

func groupRebalances(ctx context.Context) error {
	topic, err := createTopic(ctx, 4)
	if err != nil {
		return err
	}
	group := unique("group")
	one, err := join(ctx, group, topic)
	if err != nil {
		return err
	}
	defer one.client.Close()
	if err := until(ctx, "one member owns all", func() bool { return one.owned.Load() == 4 }); err != nil {
		return err
	}
	two, err := join(ctx, group, topic)
	if err != nil {
		return err
	}
	shared := func() bool { return one.owned.Load() == 2 && two.owned.Load() == 2 }
	err = until(ctx, "two members share", shared)
	two.client.Close()
	if err != nil {
		return err
	}
	return until(ctx, "one member owns all again", func() bool { return one.owned.Load() == 4 })
}

// member counts the partitions it owns; franz-go moves them one by one (cooperative-sticky).
type member struct {
	client *kgo.Client
	owned  atomic.Int32
}

func join(ctx context.Context, group, topic string) (*member, error) {
	m := &member{}
	count := func(sign int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
			m.owned.Add(sign * int32(len(moved[topic])))
		}
	}
	c, err := client(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.OnPartitionsAssigned(count(1)), kgo.OnPartitionsRevoked(count(-1)), kgo.OnPartitionsLost(count(-1)),
	)
	m.client = c
	return m, err
}

func until(ctx context.Context, what string, condition func() bool) error {
	for !condition() {
		if ctx.Err() != nil {
			return fmt.Errorf("not in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

func topicDeleted(ctx context.Context) error {
	topic, err := createTopic(ctx, 1)
	if err != nil {
		return err
	}
	c, err := client()
	if err != nil {
		return err
	}
	defer c.Close()
	named := kmsg.NewDeleteTopicsRequestTopic()
	named.Topic = &topic
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.Topics = append(request.Topics, named)
	request.TopicNames = []string{topic}
	response, err := request.RequestWith(ctx, c)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Topics[0].ErrorCode)
}
