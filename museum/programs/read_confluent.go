// The step "read VALUE" with confluent-kafka-go: a read_committed reader of partition 0, until VALUE.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

func init() { read = readUntil }

func readUntil(last string) error {
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
	for value := ""; value != last; {
		message, err := reader.ReadMessage(time.Second)
		if err != nil {
			fmt.Fprintln(os.Stderr, "read", err)
			time.Sleep(200 * time.Millisecond)
			continue
		}
		value = string(message.Value)
		fmt.Printf("read %s %d %d\n", value, message.TopicPartition.Partition, message.TopicPartition.Offset)
	}
	return nil
}
