package agent_test

import (
	"context"
	"fmt"
	"os"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/place"
)

// A service gets two CPUs of its own; the batch job beside it keeps off them.
func Example() {
	if err := example(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// batch runs on 0-3
	// api runs on 2-3
	// batch runs on 0-1
	// 5 steps undone
}

func example() error {
	ctx := context.Background()
	root, m, state, err := exampleHost()
	if err != nil {
		return err
	}
	defer os.RemoveAll(root.Name())
	n, err := agent.Open(ctx, agent.Options{Root: root, Machine: m, Dir: state})
	if err != nil {
		return err
	}
	defer n.Close()
	for _, r := range []place.Request{{ID: "batch", Class: place.BE}, {ID: "api", Class: place.LSE, Milli: 2000}} {
		w, err := n.Place(ctx, agent.Spec{Request: r})
		if err != nil {
			return err
		}
		fmt.Println(w.ID(), "runs on", w.CPUs)
	}
	batch, err := n.Get(ctx, "batch")
	if err != nil {
		return err
	}
	fmt.Println("batch runs on", batch.CPUs)
	items, err := n.Restore(ctx)
	fmt.Println(len(items), "steps undone")
	return err
}

// exampleHost is a machine of two cores with two threads each, which a test simulates.
func exampleHost() (*kernel.Root, *machine.Machine, string, error) {
	dir, err := os.MkdirTemp("", "berth-example-")
	if err != nil {
		return nil, nil, "", err
	}
	tree := dir + "/root"
	if err := os.Mkdir(tree, 0o755); err != nil {
		return nil, nil, "", err
	}
	k, err := fakekernel.New(tree, fakekernel.V2())
	if err != nil {
		return nil, nil, "", err
	}
	m, err := sysfs.Lscpu("# CPU,Core,Socket,Node\n0,0,0,0\n1,0,0,0\n2,1,0,0\n3,1,0,0\n")
	return kernel.NewRoot(dir, k), m, dir + "/state", err
}
