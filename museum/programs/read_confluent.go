// The step "read VALUE" with confluent-kafka-go: a new read_committed reader, from the start until VALUE or for 10 s.
package main

import (
	"fmt"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

func (c *confluent) read(last string, found func(value string, partition int32, offset int64)) error {
	reader, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": servers, "group.id": "readers", "isolation.level": "read_committed",
		"auto.offset.reset": "earliest", "log_level": 0,
	})
	if err != nil {
		return err
	}
	defer reader.Close()
	if err = reader.Subscribe(topic, nil); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		message, err := reader.ReadMessage(time.Second)
		if err != nil {
			fmt.Println("read", err)
			continue
		}
		at := message.TopicPartition
		found(string(message.Value), at.Partition, int64(at.Offset))
		if string(message.Value) == last {
			return nil
		}
	}
	return nil
}
