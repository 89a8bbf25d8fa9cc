// Goes through the plan of a case, and writes the history. The words of a plan: docs/museum.md.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const topic = "orders"

var servers = os.Getenv("BOOTSTRAP_SERVERS")

// client: what a library has to do. send: acked is called with the result, on any goroutine.
type client interface {
	open(identity string) error
	begin() error
	send(value string, partition int32, acked func(error))
	flush() error
	commit() error
	abort() error
}

// reader: a library that has the step "read". found is called with each record.
type reader interface {
	read(last string, found func(value string, partition int32, offset int64)) error
}

var telling sync.Mutex

func tell(event string, fields map[string]any) {
	telling.Lock()
	defer telling.Unlock()
	fields["event"], fields["topic"] = event, topic
	line, _ := json.Marshal(fields)
	file, err := os.OpenFile(os.Getenv("MINIBROKER_HISTORY"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	fmt.Fprintf(file, "%s\n", line)
}

// settings: of the case, for this library.
func settings(into any) {
	if err := json.Unmarshal([]byte(os.Args[1]), into); err != nil {
		panic(err)
	}
}

func follow(c client) {
	steps, identity, transaction := os.Args[2:], "", -1
	for at := 0; at < len(steps); at++ {
		word, what, _ := strings.Cut(steps[at], " ")
		var err error
		switch word {
		case "open":
			identity = what
			for err = c.open(identity); err != nil; err = c.open(identity) {
				fmt.Println(steps[at], err)
			}
		case "begin":
			transaction++
			err = c.begin()
		case "flush":
			err = c.flush()
		case "sleep":
			seconds, _ := strconv.ParseFloat(what, 64)
			time.Sleep(time.Duration(seconds * float64(time.Second)))
		case "read":
			err = c.(reader).read(what, func(value string, partition int32, offset int64) {
				tell("read", map[string]any{"value": value, "partition": partition, "offset": offset})
			})
		case "send", "insist":
			send(c, word == "insist", what, identity != "", transaction)
		default:
			if err = map[string]func() error{"commit": c.commit, "abort": c.abort}[word](); err == nil {
				tell("end", map[string]any{"transaction": transaction, "outcome": word})
			}
		}
		if err == nil {
			continue
		}
		fmt.Println(steps[at], err)
		if identity == "" || word == "open" {
			continue
		}
		// The rest of the transaction is left out; it is aborted, or its producer replaced by a new one.
		if err = c.abort(); err == nil {
			tell("end", map[string]any{"transaction": transaction, "outcome": "abort"})
		} else {
			fmt.Println("abort", err, c.open(identity))
		}
		for ; word != "commit" && word != "abort" && at+1 < len(steps); at++ {
			word = steps[at+1]
		}
	}
}

func send(c client, insist bool, what string, inside bool, transaction int) {
	value, place, _ := strings.Cut(what, "@")
	partition, _ := strconv.Atoi(place)
	fields := map[string]any{"value": value}
	if inside {
		fields["transaction"] = transaction
	}
	tell("send", fields)
	for {
		done := make(chan error, 1)
		c.send(value, int32(partition), func(err error) {
			if err == nil {
				tell("ack", map[string]any{"value": value})
			} else {
				fmt.Println(value, err)
			}
			done <- err
		})
		if !insist || <-done == nil {
			return
		}
		time.Sleep(300 * time.Millisecond)
	}
}
