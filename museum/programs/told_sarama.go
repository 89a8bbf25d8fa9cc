// What became of the records, with sarama.
package main

import (
	"cmp"
	"sync"

	"github.com/IBM/sarama"
)

func listen(producer sarama.AsyncProducer, waiting *sync.WaitGroup) {
	go func() {
		for failure := range producer.Errors() {
			done(failure.Msg, failure.Err, waiting)
		}
	}()
	for message := range producer.Successes() {
		done(message, nil, waiting)
	}
}

func done(message *sarama.ProducerMessage, err error, waiting *sync.WaitGroup) {
	failed = cmp.Or(err, failed)
	told(message.Metadata.(string), err)
	waiting.Done()
}
