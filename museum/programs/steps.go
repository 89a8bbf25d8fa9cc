// Does the steps that come on standard input, and answers each with a line: docs/reference/museum.md.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A library's own file has these functions; read is there in some.
var steps = map[string]func() error{"begin": begin, "flush": flush, "commit": commit, "abort": abort}
var read func(last string) error

func step(words []string) error {
	switch words[0] {
	case "open":
		return open(strings.Join(words[1:], ""))
	case "send":
		partition, _ := strconv.Atoi(words[2])
		send(words[1], int32(partition))
		return nil
	case "read":
		return read(words[1])
	}
	return steps[words[0]]()
}

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := step(strings.Fields(lines.Text())); err != nil {
			fmt.Printf("error %v\n", err)
		} else {
			fmt.Println("ok")
		}
	}
}
