// Package minibroker starts a Kafka-protocol broker for one test.
//
// It is `minibroker serve`, or `minibroker proxy`: the file that the variable MINIBROKER names, or .minibroker/minibroker in this directory or one above it,
// or minibroker on PATH. It prints nothing; its output is in the test's log when the test fails.
package minibroker

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const stopTime = 10 * time.Second

// Broker is a running broker; BootstrapServers is HOST:PORT for clients. Page is the address of the live page of a broker
// that was started with "--page", Metrics the HOST:PORT of one with "--metrics", "127.0.0.1:0"; empty without.
type Broker struct {
	BootstrapServers string
	Page             string
	Metrics          string

	t       testing.TB
	control string
	token   string
}

// program is the file that the variable MINIBROKER names, the project's own, or what PATH has.
func program() string {
	if named := os.Getenv("MINIBROKER"); named != "" {
		return named
	}
	directory, err := os.Getwd()
	for err == nil {
		own := filepath.Join(directory, ".minibroker", "minibroker")
		if information, failed := os.Stat(own); failed == nil && !information.IsDir() {
			return own
		}
		above := filepath.Dir(directory)
		if above == directory {
			break
		}
		directory = above
	}
	return "minibroker"
}

// Start runs a broker until the test ends. arguments: further ones of `minibroker serve`, such as "--topic", "orders:3".
func Start(t testing.TB, arguments ...string) *Broker {
	t.Helper()
	return start(t, []string{"serve", "--ephemeral"}, arguments)
}

// StartProxy runs a proxy in front of a cluster that runs elsewhere, HOST:PORT[,HOST:PORT…], until the test ends: Fault
// acts on what passes, and commands that need the brokers themselves are refused. arguments: further ones of
// `minibroker proxy`.
func StartProxy(t testing.TB, upstream string, arguments ...string) *Broker {
	t.Helper()
	return start(t, []string{"proxy", "--upstream", upstream}, arguments)
}

func start(t testing.TB, what, arguments []string) *Broker {
	t.Helper()
	name := program()
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	broker := &Broker{t: t, token: hex.EncodeToString(random)}
	all := append(slices.Clone(what),
		"--port", "0", "--control", "127.0.0.1:0", "--until-stdin-closes", "--log-level", "warning")
	command := exec.Command(name, append(all, arguments...)...)
	command.Env = append(os.Environ(), "MINIBROKER_CONTROL_TOKEN="+broker.token)
	said := &quiet{}
	command.Stderr = said
	stdin, err := command.StdinPipe() // the broker ends when it is closed, and so with this process
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatalf("%v; install minibroker with pip and have it on PATH, or its executable file as .minibroker/minibroker, or name it with the variable MINIBROKER", err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		killed := time.AfterFunc(stopTime, func() { _ = command.Process.Kill() })
		_ = command.Wait()
		killed.Stop()
		if t.Failed() {
			t.Logf("minibroker: %s", said)
		}
	})
	// It prints a line for each address once it serves: bootstrap.servers=…, control=…, and those that were asked for.
	missing := func() bool {
		return broker.control == "" || broker.Page == "" && slices.Contains(arguments, "--page") ||
			broker.Metrics == "" && slices.Contains(arguments, "--metrics")
	}
	for lines := bufio.NewScanner(stdout); missing() && lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), "=")
		switch key {
		case "bootstrap.servers":
			broker.BootstrapServers = value
		case "control":
			broker.control = value
		case "page":
			broker.Page = value
		case "metrics":
			broker.Metrics = value
		}
	}
	if broker.control == "" {
		t.Fatal("minibroker did not start")
	}
	return broker
}

// Control gives the broker a command, such as Control("clock.advance", `{"minutes": 2}`, nil), and decodes its result into
// result, unless that is nil. `minibroker control` lists all. A command that is refused fails the test.
func (broker *Broker) Control(command, body string, result any) {
	broker.t.Helper()
	if err := broker.Try(command, body, result); err != nil {
		broker.t.Fatalf("%s: %v", command, err)
	}
}

// Fault is a rule that is set. It is removed when the test ends; a rule that never acted then fails the test, as it
// proved nothing.
type Fault struct {
	ID int

	broker *Broker
	closed bool
	fired  int
}

// Fault sets a rule, such as `{"api": "EndTxn", "action": "drop_reply"}`: the fields of fault.add.
func (broker *Broker) Fault(rule string) *Fault {
	broker.t.Helper()
	fault := &Fault{broker: broker}
	broker.Control("fault.add", rule, fault)
	broker.t.Cleanup(func() {
		fault.Close()
		if fault.fired == 0 && !broker.t.Failed() {
			broker.t.Errorf("the rule %s never acted", rule)
		}
	})
	return fault
}

// Fired says how many requests the rule has acted on.
func (fault *Fault) Fired() int {
	fault.broker.t.Helper()
	if !fault.closed {
		fault.command("fault.get", "")
	}
	return fault.fired
}

// Wait until the rule has acted so many times; after ten seconds the test fails.
func (fault *Fault) Wait(times int) {
	fault.broker.t.Helper()
	fault.command("fault.wait", fmt.Sprintf(`, "times": %d`, times))
	if fault.fired < times {
		fault.broker.t.Fatalf("the rule acted %d times, not %d", fault.fired, times)
	}
}

// Release lets the requests go on that the rule holds.
func (fault *Fault) Release() {
	fault.broker.t.Helper()
	fault.command("fault.release", "")
}

// Close removes the rule; no effect the second time.
func (fault *Fault) Close() {
	fault.broker.t.Helper()
	if !fault.closed {
		fault.command("fault.remove", "")
		fault.closed = true
	}
}

func (fault *Fault) command(name, more string) {
	fault.broker.t.Helper()
	var now struct{ Fired int }
	fault.broker.Control(name, fmt.Sprintf(`{"id": %d%s}`, fault.ID, more), &now)
	fault.fired = now.Fired
}

// Record is one record of a topic. Key and Value are empty where the record has none.
type Record struct {
	Topic     string
	Partition int
	Offset    int64
	Key       Bytes
	Value     Bytes
}

// Bytes are those of a key or value, as a string.
type Bytes string

// UnmarshalJSON takes a text, or the base64 of bytes that are none.
func (bytes *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var encoded struct{ Base64 []byte }
		err := json.Unmarshal(data, &encoded)
		*bytes = Bytes(encoded.Base64)
		return err
	}
	var text string
	err := json.Unmarshal(data, &text)
	*bytes = Bytes(text)
	return err
}

// Records gives what a read_committed consumer reads of a topic, from its start to its end.
func (broker *Broker) Records(topic string) []Record {
	broker.t.Helper()
	asked, _ := json.Marshal(map[string]string{"topic": topic, "isolation": "read_committed"})
	var records []Record
	broker.Control("read.records", string(asked), &records)
	return records
}

// Try is Control for a command that may be refused: it returns why.
func (broker *Broker) Try(command, body string, result any) error {
	url := "http://" + broker.control + "/v1/" + strings.ReplaceAll(command, ".", "/")
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+broker.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", data)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(data, &struct{ Result any }{result})
}

// quiet keeps the broker's output until it is asked for.
type quiet struct {
	mutex sync.Mutex
	bytes.Buffer
}

func (said *quiet) Write(data []byte) (int, error) {
	said.mutex.Lock()
	defer said.mutex.Unlock()
	return said.Buffer.Write(data)
}
