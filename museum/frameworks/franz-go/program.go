package main

import (
	"bytes"
	"context"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")...),
		kgo.TransactionalID(os.Getenv("GROUP")),
		kgo.ConsumerGroup(os.Getenv("GROUP")),
		kgo.ConsumeTopics(os.Getenv("INPUT_TOPIC")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		log.Fatalf("error: %v", err)
	}
	defer session.Close()
	for {
		fetches := session.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		if err := session.Begin(); err != nil {
			log.Fatalf("error: begin: %v", err)
		}
		first := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(r *kgo.Record) {
			out := &kgo.Record{Topic: os.Getenv("OUTPUT_TOPIC"), Key: r.Key, Value: bytes.ToUpper(r.Value)}
			session.Produce(ctx, out, first.Promise())
		})
		// Without an error nothing was committed because of a rebalance, and the records are read again.
		if _, err := session.End(context.Background(), first.Err() == nil); err != nil {
			log.Fatalf("error: end: %v", err)
		}
	}
}
