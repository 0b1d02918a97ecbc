// Command work is what containers of the tests run: it waits until it is told to end.
//
//	work           ends by SIGTERM or SIGINT, with status 0
//	work 500ms     ends by itself after so long
//
// Where CNI_COMMAND is set it is a network plugin that makes no network.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if command := os.Getenv("CNI_COMMAND"); command != "" {
		network(command)
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	var after <-chan time.Time
	if len(os.Args) > 1 {
		d, err := time.ParseDuration(os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "work:", err)
			os.Exit(2)
		}
		after = time.After(d)
	}
	select {
	case <-end:
	case <-after:
	}
}

func network(command string) {
	switch command {
	case "ADD":
		fmt.Printf(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"203.0.113.2/32","interface":0}],"dns":{}}`+"\n", os.Getenv("CNI_NETNS"))
	case "VERSION":
		fmt.Println(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`)
	}
}
