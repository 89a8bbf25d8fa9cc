// minibroker beside a Go test, with franz-go: a broker of its own, and a commit whose answer is lost.
// Needs `minibroker` on PATH (pip install minibroker), or MINIBROKER naming it, and github.com/twmb/franz-go.
package minibroker

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const token = "a-token-of-this-test"

// broker starts minibroker for one test and returns the addresses of its clients' and its control port.
func broker(t *testing.T) (bootstrap, control string) {
	t.Helper()
	name := os.Getenv("MINIBROKER")
	if name == "" {
		name = "minibroker"
	}
	command := exec.Command(name, "serve", "--port", "0", "--ephemeral", "--control", "127.0.0.1:0", "--topic", "orders")
	command.Env = append(os.Environ(), "MINIBROKER_CONTROL_TOKEN="+token)
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	// It prints two lines once it accepts connections: bootstrap.servers=… and control=….
	for lines := bufio.NewScanner(stdout); control == "" && lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), "=")
		switch key {
		case "bootstrap.servers":
			bootstrap = value
		case "control":
			control = value
		}
	}
	if control == "" {
		t.Fatal("the broker did not start")
	}
	return bootstrap, control
}

// tell sends a command to the broker: a fault, the clock, its state (minibroker control --describe).
func tell(t *testing.T, control, path, body string) (rule struct{ Fired int }) {
	t.Helper()
	request, err := http.NewRequest("POST", "http://"+control+"/v1/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, response.Status)
	}
	answer := struct{ Result *struct{ Fired int } }{&rule}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return rule
}

func TestALostCommitReplyCommitsOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	bootstrap, control := broker(t)
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("app"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()

	tell(t, control, "fault/add", `{"api": "EndTxn", "action": "drop_reply"}`)
	for _, value := range []string{"once", "end"} {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := producer.EndTransaction(ctx, kgo.TryCommit); err != nil { // the client asks again
			t.Fatal(err)
		}
	}
	if rule := tell(t, control, "fault/wait", `{"id": 1}`); rule.Fired != 1 {
		t.Fatal("no answer was lost")
	}

	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("g"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	var values []string
	for len(values) == 0 || values[len(values)-1] != "end" {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	if strings.Join(values, " ") != "once end" {
		t.Fatalf("read %v", values)
	}
}
