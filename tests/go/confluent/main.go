// Transactions of confluent-kafka-go whose records must be delivered by the time the offsets are sent.
//
// usage: confluent BOOTSTRAP ROUNDS. Each round begins a transaction right after the one before has ended, produces,
// sends offsets, and asks Flush(-1) how many records are left: it does not wait. Kafka tells the client to wait before it
// takes the offsets, which is time enough for the records. It prints a line "left N of M" for each round.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

const records = 10

func main() {
	rounds, err := strconv.Atoi(os.Args[2])
	check(err)
	ctx := context.Background()
	unique := strconv.FormatInt(time.Now().UnixNano(), 36)
	producer, err := kafka.NewProducer(&kafka.ConfigMap{
		"bootstrap.servers": os.Args[1],
		"transactional.id":  "confluent-" + unique,
	})
	check(err)
	topic := "confluent-" + unique
	makeTopic(ctx, producer, topic)
	check(producer.InitTransactions(ctx))
	group, err := kafka.NewTestConsumerGroupMetadata("confluent-" + unique)
	check(err)
	for round := 0; round <= rounds; round++ {
		left := transaction(ctx, producer, topic, group)
		if round > 0 { // none has ended before the first
			fmt.Printf("left %d of %d\n", left, records)
		}
	}
	producer.Close()
}

func makeTopic(ctx context.Context, producer *kafka.Producer, topic string) {
	admin, err := kafka.NewAdminClientFromProducer(producer)
	check(err)
	results, err := admin.CreateTopics(ctx, []kafka.TopicSpecification{
		{Topic: topic, NumPartitions: 3, ReplicationFactor: 1},
	})
	check(err)
	for _, result := range results {
		if result.Error.Code() != kafka.ErrNoError {
			check(result.Error)
		}
	}
}

// transaction is one round; how many records were not delivered when the offsets were sent.
func transaction(ctx context.Context, producer *kafka.Producer, topic string, group *kafka.ConsumerGroupMetadata) int {
	check(producer.BeginTransaction())
	reports := make(chan kafka.Event, records)
	for i := 0; i < records; i++ {
		check(producer.Produce(&kafka.Message{
			TopicPartition: kafka.TopicPartition{Topic: &topic, Partition: kafka.PartitionAny},
			Value:          []byte(strconv.Itoa(i)),
		}, reports))
	}
	offsets := []kafka.TopicPartition{{Topic: &topic, Partition: 0, Offset: 1}}
	check(producer.SendOffsetsToTransaction(ctx, offsets, group))
	left := producer.Flush(-1)
	check(producer.CommitTransaction(ctx))
	for i := 0; i < records; i++ {
		check((<-reports).(*kafka.Message).TopicPartition.Error)
	}
	return left
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
