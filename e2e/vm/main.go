// Command vm fetches what guests with real kernels are made of, and boots one.
//
//	go run ./e2e/vm fetch [-systemd]
//	go run ./e2e/vm boot -cpus 4 -- map
//	go run ./e2e/vm boot -cpus 1 -instruction 1 -- lab guard --faults none
//	go run ./e2e/vm boot -cpus 4 -systemd -file /walk=walk.sh -- /walk
//
// Fetch gets QEMU, kernels and busybox as Debian packages and lays them out as a
// kit for internal/vmtest. Nothing is installed: packages are unpacked below one
// directory. With -systemd it makes a root file system, too. What is complete is
// left alone, without a network. Mirrors come from the host's own apt sources,
// and apt checks signatures and hashes. A version that the archive no longer has
// is replaced by the present one.
//
// Boot runs berth in a guest of that kit and prints what it writes, for
// experiments that want another machine than this one, or with -systemd what a
// program there writes. It exits with that program's status.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
)

// kitDir is where the kit is by default.
const kitDir = ".cache/e2e"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	exit, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		exit = cmp.Or(exit, 1)
	}
	os.Exit(exit)
}

func run(ctx context.Context, args []string) (exit int, err error) {
	if len(args) > 0 {
		switch args[0] {
		case "fetch":
			return 0, fetchCommand(ctx, args[1:])
		case "boot":
			return boot(ctx, args[1:])
		}
	}
	return 2, errors.New("which of fetch and boot?")
}
