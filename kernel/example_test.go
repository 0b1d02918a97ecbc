package kernel_test

import (
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/kernel"
)

// A plan is shown, carried out and undone, under a directory that stands for "/".
func Example() {
	dir, err := os.MkdirTemp("", "berth-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	weight := filepath.Join(dir, "cpu.weight")
	show := func() {
		text, err := os.ReadFile(weight)
		fmt.Printf("cpu.weight is %s%v\n", text, err)
	}
	if err := os.WriteFile(weight, []byte("100\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	root, err := kernel.Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	journal, err := kernel.OpenJournal(root, filepath.Join(dir, "run"), "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer journal.Close()

	plan := kernel.Plan{{Path: "cpu.weight", Value: "250", Why: "the service goes first"}}
	fmt.Print(plan)
	undo, err := kernel.Apply(root, plan, journal)
	if err != nil {
		fmt.Println(err)
		return
	}
	show()
	if err := undo(); err != nil {
		fmt.Println(err)
		return
	}
	show()
	// Output:
	// echo 250 > /cpu.weight  # the service goes first
	// cpu.weight is 250
	// <nil>
	// cpu.weight is 100
	// <nil>
}
