// The loop of tests/support/applications/loop_client.py with franz-go, for `minibroker judge`: consumes `in`, produces to
// `out`, commits its offsets. The argument names the mistake in it; `right` has none.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	inputs   = 6
	inOne    = 2
	patience = 60 * time.Second
	wait     = 8 * time.Second
	short    = 700 * time.Millisecond
)

var mistake = os.Args[1]

// loop: with a session, whose End commits the offsets with the transaction, or with a plain client.
type loop struct {
	client  *kgo.Client
	session *kgo.GroupTransactSession
	names   int
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fill(ctx)
	made := &loop{}
	made.open("loop")
	for made.committed() < inputs {
		made.step(ctx)
	}
	made.client.Close()
}

func options(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.ProduceRequestTimeout(1500 * time.Millisecond),
		kgo.RequestTimeoutOverhead(1500 * time.Millisecond),
	}, more...)
}

// fill writes the whole input in one Produce, so that the script's failures of Produce are left to the loop.
func fill(ctx context.Context) {
	client, err := kgo.NewClient(options(kgo.ProducerLinger(200 * time.Millisecond))...)
	must(err)
	defer client.Close()
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic, topic.Partitions = "in", append(topic.Partitions, partition)
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	must(err)
	if response.Topics[0].Partitions[0].Offset > 0 {
		return
	}
	var records []*kgo.Record
	for number := range inputs {
		records = append(records, &kgo.Record{Topic: "in", Value: fmt.Appendf(nil, "v%d", number)})
	}
	must(client.ProduceSync(ctx, records...).FirstErr())
}

func (l *loop) open(name string) {
	if l.client != nil {
		l.client.Close()
	}
	own := options(
		kgo.ConsumerGroup("loop"), kgo.ConsumeTopics("in"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second),
		kgo.ProducerLinger(0),
	)
	if mistake == "delivery_unseen" {
		l.plain(append(own, kgo.DisableAutoCommit()))
		return
	}
	own = append(own, kgo.TransactionalID(name), kgo.TransactionTimeout(20*time.Second))
	if mistake == "offsets_outside" {
		l.plain(append(own, kgo.DisableAutoCommit()))
		return
	}
	session, err := kgo.NewGroupTransactSession(own...)
	must(err)
	l.session, l.client = session, session.Client()
}

func (l *loop) plain(options []kgo.Opt) {
	client, err := kgo.NewClient(options...)
	must(err)
	l.client = client
}

// committed is the offset that the group has committed.
func (l *loop) committed() int64 { return l.client.CommittedOffsets()["in"][0].Offset }

func (l *loop) step(ctx context.Context) {
	polling, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	batch := l.client.PollRecords(polling, inOne).Records()
	cancel()
	must(ctx.Err())
	if len(batch) == 0 {
		return
	}
	switch mistake {
	case "delivery_unseen":
		_ = l.send(ctx, batch)
		must(l.client.CommitRecords(ctx, batch...))
	case "offsets_outside":
		must(l.client.BeginTransaction())
		must(l.send(ctx, batch))
		must(l.client.EndTransaction(ctx, kgo.TryCommit))
		must(l.client.CommitRecords(ctx, batch...))
	default:
		l.transact(ctx, batch)
	}
}

func (l *loop) send(ctx context.Context, batch []*kgo.Record) error {
	var records []*kgo.Record
	for _, record := range batch {
		records = append(records, &kgo.Record{Topic: "out", Value: record.Value})
	}
	return l.client.ProduceSync(ctx, records...).FirstErr()
}

func (l *loop) transact(ctx context.Context, batch []*kgo.Record) {
	if err := l.session.Begin(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		l.open("loop") // without a producer id, which this client does not ask for again
		return
	}
	failed := l.send(ctx, batch)
	if failed != nil && mistake == "swallowed" {
		fmt.Fprintln(os.Stderr, failed)
		must(l.client.CommitRecords(ctx, batch...))
		l.open("loop")
		return
	}
	limit := wait
	if mistake == "new_id" {
		limit = short
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	committed, err := l.session.End(limited, kgo.TransactionEndTry(failed == nil))
	if committed {
		return
	}
	fmt.Fprintln(os.Stderr, failed, err)
	if err == nil {
		return // the session goes back by itself
	}
	if mistake == "new_id" {
		l.names++
		l.open(fmt.Sprintf("loop-%d-%d", os.Getpid(), l.names))
		l.transact(ctx, batch)
		return
	}
	l.open("loop") // the group says where to go on
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
