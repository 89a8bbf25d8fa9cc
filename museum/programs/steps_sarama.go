// The steps with sarama.
package main

import (
	"sync"

	"github.com/IBM/sarama"
)

var waiting *sync.WaitGroup
var failed error

func begin() error {
	failed = nil
	return producer.BeginTxn()
}

func send(value string, partition int32) {
	waiting.Add(1)
	record := sarama.StringEncoder(value)
	producer.Input() <- &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: record, Metadata: value}
}

func flush() error {
	waiting.Wait()
	return failed
}

func commit() error {
	if err := flush(); err != nil {
		return err
	}
	return producer.CommitTxn()
}

func abort() error {
	waiting.Wait()
	return producer.AbortTxn()
}
