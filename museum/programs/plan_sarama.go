// A plan with sarama.
package main

import (
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type saramaClient struct {
	producer sarama.AsyncProducer
	waiting  *sync.WaitGroup
	failed   error
}

func (s *saramaClient) open(identity string) error {
	own := struct {
		RequestSeconds float64
		Retries        int
	}{30, 10}
	settings(&own)
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Net.MaxOpenRequests, config.Producer.Idempotent = 1, true
	config.Net.ReadTimeout = time.Duration(own.RequestSeconds * float64(time.Second))
	config.Producer.RequiredAcks, config.Producer.Partitioner = sarama.WaitForAll, sarama.NewManualPartitioner
	config.Producer.Return.Successes, config.Producer.Retry.Max = true, own.Retries
	config.Producer.Transaction.ID = identity
	producer, err := sarama.NewAsyncProducer(strings.Split(servers, ","), config)
	if err != nil {
		return err
	}
	s.producer, s.waiting = producer, &sync.WaitGroup{}
	waiting := s.waiting
	go func() {
		for message := range producer.Successes() {
			message.Metadata.(func(error))(nil)
			waiting.Done()
		}
	}()
	go func() {
		for failure := range producer.Errors() {
			s.failed = failure.Err
			failure.Msg.Metadata.(func(error))(failure.Err)
			waiting.Done()
		}
	}()
	return nil
}

func (s *saramaClient) begin() error { s.failed = nil; return s.producer.BeginTxn() }

func (s *saramaClient) send(value string, partition int32, acked func(error)) {
	s.waiting.Add(1)
	s.producer.Input() <- &sarama.ProducerMessage{
		Topic: topic, Partition: partition, Value: sarama.StringEncoder(value), Metadata: acked,
	}
}

func (s *saramaClient) flush() error { s.waiting.Wait(); return s.failed }

func (s *saramaClient) commit() error {
	if err := s.flush(); err != nil {
		return err
	}
	return s.producer.CommitTxn()
}

func (s *saramaClient) abort() error { s.waiting.Wait(); return s.producer.AbortTxn() }

func main() { follow(&saramaClient{}) }
