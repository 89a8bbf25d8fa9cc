// Package minibroker starts a Kafka-protocol broker for one test.
//
// It is `minibroker serve`, from PATH or as the variable MINIBROKER names it. It prints nothing; its output is in the
// test's log when the test fails.
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
	"strings"
	"sync"
	"testing"
	"time"
)

const stopTime = 10 * time.Second

// Broker is a running broker; BootstrapServers is HOST:PORT for clients.
type Broker struct {
	BootstrapServers string

	t       testing.TB
	control string
	token   string
}

// Start runs a broker until the test ends. arguments: further ones of `minibroker serve`, such as "--topic", "orders:3".
func Start(t testing.TB, arguments ...string) *Broker {
	t.Helper()
	name := os.Getenv("MINIBROKER")
	if name == "" {
		name = "minibroker"
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	broker := &Broker{t: t, token: hex.EncodeToString(random)}
	command := exec.Command(name, append([]string{
		"serve", "--port", "0", "--ephemeral", "--control", "127.0.0.1:0", "--until-stdin-closes", "--log-level", "warning",
	}, arguments...)...)
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
		t.Fatalf("%v; install minibroker with pip and have it on PATH, or name it with the variable MINIBROKER", err)
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
	// It prints two lines once it serves: bootstrap.servers=… and control=….
	for lines := bufio.NewScanner(stdout); broker.control == "" && lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), "=")
		switch key {
		case "bootstrap.servers":
			broker.BootstrapServers = value
		case "control":
			broker.control = value
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
	if err := broker.try(command, body, result); err != nil {
		broker.t.Fatalf("%s: %v", command, err)
	}
}

func (broker *Broker) try(command, body string, result any) error {
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
