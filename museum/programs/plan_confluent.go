// A plan with confluent-kafka-go, and the librdkafka bundled with it.
package main

import (
	"context"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

type confluent struct {
	producer *kafka.Producer
	failed   error
}

func (c *confluent) open(identity string) error {
	config := kafka.ConfigMap{"bootstrap.servers": servers, "log_level": 0, "linger.ms": 0, "enable.idempotence": true}
	if identity != "" {
		config["transactional.id"] = identity
	}
	own := map[string]string{}
	settings(&own)
	for key, value := range own {
		config[key] = value
	}
	producer, err := kafka.NewProducer(&config)
	if err != nil {
		return err
	}
	c.producer = producer
	go func() {
		for event := range producer.Events() {
			if message, ok := event.(*kafka.Message); ok {
				c.failed = message.TopicPartition.Error
				message.Opaque.(func(error))(message.TopicPartition.Error)
			}
		}
	}()
	if identity != "" {
		return producer.InitTransactions(limited())
	}
	return nil
}

func limited() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	_ = cancel // the program ends soon
	return ctx
}

func (c *confluent) begin() error { return c.producer.BeginTransaction() }

func (c *confluent) send(value string, partition int32, acked func(error)) {
	name := topic
	_ = c.producer.Produce(&kafka.Message{
		TopicPartition: kafka.TopicPartition{Topic: &name, Partition: partition}, Value: []byte(value), Opaque: acked,
	}, nil)
}

func (c *confluent) flush() error  { c.producer.Flush(30_000); return nil }
func (c *confluent) commit() error { return c.producer.CommitTransaction(limited()) }
func (c *confluent) abort() error  { return c.producer.AbortTransaction(limited()) }

func main() { follow(&confluent{}) }
