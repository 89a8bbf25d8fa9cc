// A producer of sarama.
package main

import (
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var producer sarama.AsyncProducer

func open(identity string) (err error) {
	own := struct{ RequestSeconds time.Duration }{30}
	settings(&own)
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Net.MaxOpenRequests = 1
	config.Net.ReadTimeout = own.RequestSeconds * time.Second
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 10
	config.Producer.Transaction.ID = identity
	producer, err = sarama.NewAsyncProducer(strings.Split(servers, ","), config)
	if err == nil {
		waiting = &sync.WaitGroup{}
		go listen(producer, waiting)
	}
	return err
}
