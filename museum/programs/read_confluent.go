// The step "read VALUE" with confluent-kafka-go: a read_committed reader of partition 0, until VALUE.
package main

import (
	"fmt"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

func (c *confluent) read(last string, found func(value string, partition int32, offset int64)) error {
	reader, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": servers, "group.id": "readers", "isolation.level": "read_committed",
		"enable.auto.commit": false, "log_level": 0,
	})
	if err != nil {
		return err
	}
	name := topic
	// No group and no ListOffsets: today's brokers do not serve the versions that old clients ask for.
	if err = reader.Assign([]kafka.TopicPartition{{Topic: &name, Partition: 0, Offset: 0}}); err != nil {
		return err
	}
	for {
		message, err := reader.ReadMessage(time.Second)
		if err != nil {
			fmt.Println("read", err)
			time.Sleep(200 * time.Millisecond)
			continue
		}
		at := message.TopicPartition
		found(string(message.Value), at.Partition, int64(at.Offset))
		if string(message.Value) == last {
			return nil
		}
	}
}
