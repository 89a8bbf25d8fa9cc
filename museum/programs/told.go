// What a library's file needs: where the broker is, the settings of the case, and a way to tell what became of a record.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

const topic = "orders"

var servers = os.Getenv("BOOTSTRAP_SERVERS")

func settings(into any) {
	if err := json.Unmarshal([]byte(os.Args[1]), into); err != nil {
		panic(err)
	}
}

func told(value string, err error) {
	if err != nil {
		fmt.Printf("nack %s %v\n", value, err)
	} else {
		fmt.Printf("ack %s\n", value)
	}
}
