// A producer of confluent-kafka-go, and the librdkafka bundled with it.
package main

import "github.com/confluentinc/confluent-kafka-go/kafka"

var producer *kafka.Producer

func open(identity string) (err error) {
	config := kafka.ConfigMap{"bootstrap.servers": servers, "log_level": 0, "linger.ms": 0, "enable.idempotence": true}
	if identity != "" {
		config["transactional.id"] = identity
	}
	own := map[string]string{}
	settings(&own)
	for key, value := range own {
		config[key] = value
	}
	if producer, err = kafka.NewProducer(&config); err != nil {
		return err
	}
	go listen(producer)
	if identity != "" {
		return producer.InitTransactions(limited())
	}
	return nil
}

func listen(producer *kafka.Producer) {
	for event := range producer.Events() {
		if message, ok := event.(*kafka.Message); ok {
			told(string(message.Value), message.TopicPartition.Error)
		}
	}
}
