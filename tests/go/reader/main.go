// tests/support/applications/read_client.py with franz-go and sarama; the argument names the library.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

var servers = strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")
var topic = os.Getenv("MINIBROKER_TOPIC")

func main() {
	map[string]func(){"franz-go": franz, "sarama": ibm}[os.Args[1]]()
}

// told prints the record, and says whether it is the last one.
func told(offset int64, value []byte) bool {
	fmt.Printf("%d %s\n", offset, value)
	return string(value) == "end"
}

func franz() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	)
	must(err)
	for last := false; !last; {
		fetches := client.PollFetches(context.Background())
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { last = told(record.Offset, record.Value) || last })
	}
}

func ibm() {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer(servers, config)
	must(err)
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	must(err)
	for message := range partition.Messages() {
		if told(message.Offset, message.Value) {
			return
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
