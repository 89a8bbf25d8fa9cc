// The steps with confluent-kafka-go.
package main

import (
	"context"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

const patience = 30 * time.Second

func limited() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	_ = cancel // the program ends soon
	return ctx
}

func begin() error { return producer.BeginTransaction() }

func send(value string, partition int32) {
	name := topic
	place := kafka.TopicPartition{Topic: &name, Partition: partition}
	_ = producer.Produce(&kafka.Message{TopicPartition: place, Value: []byte(value)}, nil)
}

func flush() error {
	producer.Flush(int(patience.Milliseconds()))
	return nil
}

func commit() error { return producer.CommitTransaction(limited()) }

func abort() error { return producer.AbortTransaction(limited()) }
