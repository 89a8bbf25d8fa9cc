// An application for `minibroker judge`, once with franz-go and once with sarama: idempotent sends, transactions of which
// every third is aborted, another producer when one fails or is fenced, everything read back with read_committed, and a
// history of what it believes. The argument names the library.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	topic         = "orders"
	transactional = "tx"
	sends         = 5
	transactions  = 6
	inOne         = 2
	patience      = 60 * time.Second
	pause         = 300 * time.Millisecond
)

var servers = strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")

// sender is what an application needs of a producer; after an error it is closed, and another one begins.
type sender interface {
	send(ctx context.Context, value string) error
	begin() error
	end(ctx context.Context, commit bool) error
	close()
}

type library struct {
	idempotent    func(context.Context) (sender, error)
	transactional func(context.Context) (sender, error)
	read          func(context.Context, func(offset int64, value string)) error
}

// libraries: by their names; each adds itself, so that the program can be built with one of them alone.
var libraries = map[string]library{}

func main() {
	chosen, known := libraries[os.Args[1]]
	if !known {
		fail("no such library")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	idempotentSends(ctx, chosen)
	transacted(ctx, chosen)
	must(chosen.read(ctx, func(offset int64, value string) {
		tell(map[string]any{"event": "read", "partition": 0, "offset": offset, "value": value})
	}))
}

func idempotentSends(ctx context.Context, chosen library) {
	plain := opened(ctx, chosen.idempotent)
	for number := range sends {
		value := fmt.Sprintf("i%d", number)
		tell(map[string]any{"event": "send", "value": value})
		if err := plain.send(ctx, value); err != nil {
			fmt.Printf("%s: %v\n", value, err)
			plain.close()
			plain = opened(ctx, chosen.idempotent)
			continue
		}
		tell(map[string]any{"event": "ack", "value": value})
	}
	plain.close()
}

func transacted(ctx context.Context, chosen library) {
	made := opened(ctx, chosen.transactional)
	for transaction := range transactions {
		commit := transaction%3 != 2
		if err := one(ctx, made, transaction, commit); err != nil {
			fmt.Printf("transaction %d: %v\n", transaction, err)
			made.close()
			made = opened(ctx, chosen.transactional)
			continue
		}
		outcome := map[bool]string{true: "commit", false: "abort"}[commit]
		tell(map[string]any{"event": "end", "transaction": transaction, "outcome": outcome})
	}
	made.close()
}

// opened is a new producer: a coordinator that is still loading does not make one at once.
func opened(ctx context.Context, open func(context.Context) (sender, error)) sender {
	for {
		made, err := open(ctx)
		if err == nil {
			return made
		}
		fmt.Printf("open: %v\n", err)
		must(ctx.Err())
		time.Sleep(pause)
	}
}

func one(ctx context.Context, made sender, transaction int, commit bool) error {
	if err := made.begin(); err != nil {
		return err
	}
	for number := range inOne {
		value := fmt.Sprintf("t%d-%d", transaction, number)
		tell(map[string]any{"event": "send", "value": value, "transaction": transaction})
		if err := made.send(ctx, value); err != nil {
			return err
		}
	}
	return made.end(ctx, commit)
}

func tell(event map[string]any) {
	event["topic"] = topic
	line, err := json.Marshal(event)
	must(err)
	history, err := os.OpenFile(os.Getenv("MINIBROKER_HISTORY"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(err)
	_, err = history.Write(append(line, '\n'))
	must(err)
	must(history.Close())
}

func must(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
