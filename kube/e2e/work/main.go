// Command work is what containers of the tests run: it waits until it is told to end.
//
//	work           ends by SIGTERM or SIGINT, with status 0
//	work 500ms     ends by itself after so long
//	work /FILE     prints what is in the file when it starts, quoted, and ends by a signal
//	work 3 0.5     has three threads that run for half of each 10 ms, and ends by a signal
//
//	work send HOST:PORT      sends to a server, once it can be reached, as much as it can
//	work receive HOST:PORT   receives from one as much as comes; both end by a signal
//
// Where CNI_COMMAND is set it is a network plugin that makes no network.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
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
	var err error
	switch len(os.Args) {
	case 2:
		after, err = one(os.Args[1])
	case 3:
		switch what, of := os.Args[1], os.Args[2]; what {
		case "send", "receive":
			go talk(what == "send", of)
		default:
			err = load(what, of)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "work:", err)
		os.Exit(2)
	}
	select {
	case <-end:
	case <-after:
	}
}

// one prints a file, or says when to end.
func one(arg string) (end <-chan time.Time, err error) {
	if filepath.IsAbs(arg) {
		text, err := os.ReadFile(arg)
		if err == nil {
			_, err = fmt.Printf("%q\n", text)
		}
		return nil, err
	}
	d, err := time.ParseDuration(arg)
	if err != nil {
		return nil, err
	}
	return time.After(d), nil
}

// load starts threads that run for a part of each turn.
func load(threads, part string) error {
	n, err := strconv.Atoi(threads)
	if err != nil {
		return err
	}
	f, err := strconv.ParseFloat(part, 64)
	if err != nil {
		return err
	}
	const turn = 10 * time.Millisecond
	runtime.GOMAXPROCS(n + 1)
	for range n {
		go func() {
			runtime.LockOSThread()
			for {
				for began := time.Now(); time.Since(began).Seconds() < f*turn.Seconds(); {
				}
				time.Sleep(time.Duration((1 - f) * float64(turn)))
			}
		}()
	}
	return nil
}

// talk connects to a server, again and again, and sends or receives as much as it can.
func talk(sends bool, server string) {
	for ; ; time.Sleep(100 * time.Millisecond) {
		c, err := net.DialTimeout("tcp4", server, time.Second)
		if err != nil {
			continue
		}
		for b := make([]byte, 64<<10); err == nil; {
			if sends {
				_, err = c.Write(b)
			} else {
				_, err = c.Read(b)
			}
		}
		c.Close()
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
