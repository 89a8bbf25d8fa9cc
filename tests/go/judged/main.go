// An application for `minibroker judge`, once with franz-go and once with sarama: idempotent sends, transactions of which
// every third is aborted, another producer when one fails or is fenced, everything read back with read_committed, and a
// history of what it believes. The argument names the library; JUDGED_TIMEOUT_MS and JUDGED_TOGETHER as in
// judged_client.py.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	topic         = "orders"
	transactional = "tx"
	transactions  = 6
	patience      = 60 * time.Second
	pause         = 300 * time.Millisecond
	deliveries    = 5
)

var (
	servers      = strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")
	together     = os.Getenv("JUDGED_TOGETHER") == "1"
	sends, inOne = 5, 2
	timeout      time.Duration
	restarts     = os.Getenv("MINIBROKER_RESTARTS")
	again        string
)

// errNotCommitting: nothing asked for the transaction's commit, so that nothing of it may be read.
var errNotCommitting = errors.New("before the commit")

func init() {
	if restarts != "" && restarts != "0" {
		again = "again" + restarts + "-"
	}
	if ms, err := strconv.Atoi(os.Getenv("JUDGED_TIMEOUT_MS")); err == nil {
		timeout = time.Duration(ms) * time.Millisecond
	}
	if together {
		sends, inOne = 20, 6
	}
}

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
	every := named("i%d", sends)
	for len(every) > 0 {
		count := 1
		if together {
			count = len(every)
		}
		if err := sendAll(ctx, plain, every[:count], map[string]any{}); err != nil && timeout == 0 {
			fmt.Printf("%s: %v\n", every[0], err)
			plain.close()
			plain = opened(ctx, chosen.idempotent)
		}
		every = every[count:]
	}
	plain.close()
}

func named(name string, count int) []string {
	values := make([]string, count)
	for number := range values {
		values[number] = again + fmt.Sprintf(name, number)
	}
	return values
}

// sendAll sends records one after the other until one fails, or together, and returns the first error.
func sendAll(ctx context.Context, made sender, values []string, fields map[string]any) error {
	results := make(chan error, len(values))
	var first error
	for _, value := range values {
		event := map[string]any{"event": "send", "value": value}
		maps.Copy(event, fields)
		tell(event)
		one := func() {
			err := made.send(ctx, value)
			if err == nil {
				tell(map[string]any{"event": "ack", "value": value})
			}
			results <- err
		}
		if together {
			go one()
			time.Sleep(time.Millisecond)
			continue
		}
		one()
		if err := <-results; err != nil {
			return err
		}
	}
	for range values {
		if !together {
			break
		}
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func transacted(ctx context.Context, chosen library) {
	made := opened(ctx, chosen.transactional)
	for transaction := range transactions {
		commit := transaction%3 != 2
		if err := one(ctx, made, transaction, commit); err != nil {
			fmt.Printf("transaction %d: %v\n", transaction, err)
			if !commit || errors.Is(err, errNotCommitting) {
				tell(map[string]any{"event": "end", "transaction": transaction, "outcome": "abort"})
			}
			if together && made.end(ctx, false) == nil {
				tell(map[string]any{"event": "end", "transaction": transaction, "outcome": "abort"})
				continue
			}
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
		return errors.Join(err, errNotCommitting)
	}
	values := named(fmt.Sprintf("t%d-%%d", transaction), inOne)
	own := map[string]any{"transaction": transaction}
	if err := sendAll(ctx, made, values, own); err != nil {
		return errors.Join(err, errNotCommitting)
	}
	return made.end(ctx, commit)
}

var telling sync.Mutex

func tell(event map[string]any) {
	telling.Lock()
	defer telling.Unlock()
	event["topic"], event["client"] = topic, "run "+restarts
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
