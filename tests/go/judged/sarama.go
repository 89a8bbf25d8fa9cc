package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
)

func init() { libraries["sarama"] = library{saramaIdempotent, saramaTransactional, saramaRead} }

type saramaSender struct{ producer sarama.SyncProducer }

func saramaConfig(id string) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Retry.Max = 10
	if timeout > 0 {
		config.Net.ReadTimeout, config.Producer.Timeout = timeout, timeout
	}
	config.Producer.Transaction.ID = id
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config
}

func saramaNew(id string) (sender, error) {
	producer, err := sarama.NewSyncProducer(servers, saramaConfig(id))
	return saramaSender{producer}, err
}

func saramaIdempotent(context.Context) (sender, error) { return saramaNew("") }

func saramaTransactional(context.Context) (sender, error) { return saramaNew(transactional) }

func (s saramaSender) send(_ context.Context, value string) error {
	_, _, err := s.producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	return err
}

func (s saramaSender) begin() error { return s.producer.BeginTxn() }

func (s saramaSender) end(_ context.Context, commit bool) error {
	if commit {
		return s.producer.CommitTxn()
	}
	return s.producer.AbortTxn()
}

func (s saramaSender) close() { _ = s.producer.Close() }

// saramaRead reads until nothing comes any more: sarama shows no markers, so that no offset tells where the end is.
func saramaRead(ctx context.Context, read func(int64, string)) error {
	client, err := sarama.NewClient(servers, saramaConfig(""))
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer partition.Close()
	for {
		select {
		case message := <-partition.Messages():
			read(message.Offset, string(message.Value))
		case <-time.After(2 * time.Second):
			return nil
		case <-ctx.Done():
			return errors.New("reading took too long")
		}
	}
}
