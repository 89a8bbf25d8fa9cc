// A producer of franz-go.
package main

import (
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var client *kgo.Client

func open(identity string) (err error) {
	own := struct {
		RequestSeconds time.Duration
		RecordRetries  int
	}{10, math.MaxInt32}
	settings(&own)
	options := []kgo.Opt{
		kgo.SeedBrokers(servers),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.RecordRetries(own.RecordRetries),
		kgo.RequestTimeoutOverhead(own.RequestSeconds * time.Second),
	}
	if identity != "" {
		options = append(options, kgo.TransactionalID(identity))
	}
	if client != nil {
		client.Close()
	}
	client, err = kgo.NewClient(options...)
	return err
}
