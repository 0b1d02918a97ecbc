// Command node builds what a Kubernetes node is made of, for tests:
//
//	go run ./e2e/node fetch [-only etcd,kube-apiserver]
//
// etcd, the API server, kubelet, containerd and runc are compiled from Go modules, in
// versions and with hashes that kube/e2e/nodekit/pins names. Nothing is installed. What is
// complete is left alone, without a network.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"berth.dev/berth/kube/e2e/nodekit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "fetch" {
		return errors.New("usage: node fetch [-only NAMES] [-dir DIRECTORY]")
	}
	flags := flag.NewFlagSet("fetch", flag.ExitOnError)
	dir := flags.String("dir", nodekit.Dir(".."), "where the programs are")
	only := flags.String("only", strings.Join(nodekit.Names(), ","), "`names` of programs, with commas between")
	_ = flags.Parse(args[1:]) // exits on an error
	return nodekit.Fetch(ctx, os.Stdout, *dir, strings.Split(*only, ",")...)
}
