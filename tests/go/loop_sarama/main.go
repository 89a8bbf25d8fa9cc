// The loop of tests/support/applications/loop_client.py, without a mistake, with sarama.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const (
	inputs   = 6
	inOne    = 2
	patience = 60 * time.Second
	group    = "loop"
)

var servers = strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")

func config(id string) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Net.MaxOpenRequests = 1
	if id != "" { // a script leaves requests of transactions without an answer, no others; a machine may be busy
		config.Net.ReadTimeout = 1500 * time.Millisecond
		config.Producer.Timeout = 1500 * time.Millisecond
	}
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID = id
	config.Producer.Transaction.Timeout = 20 * time.Second
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = time.Second
	return config
}

// fill writes the whole input in one Produce, so that the script's failures of Produce are left to the loop.
func fill() {
	together := config("")
	together.Producer.Flush.Messages = inputs
	client, err := sarama.NewClient(servers, together)
	must(err)
	defer client.Close()
	end, err := client.GetOffset("in", 0, sarama.OffsetNewest)
	must(err)
	if end > 0 {
		return
	}
	feeder, err := sarama.NewSyncProducerFromClient(client)
	must(err)
	defer feeder.Close()
	must(feeder.SendMessages(messages("in", inputs, func(number int) sarama.Encoder {
		return sarama.StringEncoder(fmt.Sprintf("v%d", number))
	})))
}

func messages(topic string, count int, value func(int) sarama.Encoder) []*sarama.ProducerMessage {
	every := make([]*sarama.ProducerMessage, count)
	for number := range every {
		every[number] = &sarama.ProducerMessage{Topic: topic, Value: value(number)}
	}
	return every
}

// loop is the handler of the consumer group; what fails ends the session, and the next one goes on where the group stands.
type loop struct {
	producer sarama.SyncProducer
	done     bool
}

func (l *loop) open() {
	for tries := 1; ; tries++ {
		producer, err := sarama.NewSyncProducer(servers, config("loop"))
		if err == nil {
			l.producer = producer
			return
		}
		if tries == 10 {
			must(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (*loop) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*loop) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (l *loop) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	next, batch := claim.InitialOffset(), []*sarama.ConsumerMessage{}
	for next < inputs {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			batch = append(batch, message)
		case <-session.Context().Done():
			return nil
		}
		if len(batch) < inOne {
			continue
		}
		if err := l.transact(batch); err != nil {
			fmt.Fprintln(os.Stderr, err)
			if l.producer.AbortTxn() != nil {
				_ = l.producer.Close()
				l.open()
			}
			return err
		}
		next, batch = batch[len(batch)-1].Offset+1, nil
	}
	l.done = true
	return nil
}

func (l *loop) transact(batch []*sarama.ConsumerMessage) error {
	if err := l.producer.BeginTxn(); err != nil {
		return err
	}
	output := messages("out", len(batch), func(number int) sarama.Encoder { return sarama.ByteEncoder(batch[number].Value) })
	if err := l.producer.SendMessages(output); err != nil {
		return err
	}
	if err := l.producer.AddMessageToTxn(batch[len(batch)-1], group, nil); err != nil {
		return err
	}
	return l.producer.CommitTxn()
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fill()
	made := &loop{}
	made.open()
	for !made.done {
		consumer, err := sarama.NewConsumerGroup(servers, group, config(""))
		must(err)
		if err := consumer.Consume(ctx, []string{"in"}, made); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if err := consumer.Close(); err != nil { // LeaveGroup on a connection of a broker that was killed
			fmt.Fprintln(os.Stderr, err)
		}
		must(ctx.Err())
	}
	_ = made.producer.Close()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
