// Command boot runs berth in a guest of internal/vmtest and prints what it writes,
// for experiments that want another machine than this one:
//
//	go run ./e2e/boot -cpus 4 -- map
//	go run ./e2e/boot -cpus 1 -instruction 1 -- lab guard --faults none
//
// It needs the kit of e2e/fetch. The exit status is that of berth.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/vmtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	exit, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		exit = cmp.Or(exit, 1)
	}
	os.Exit(exit)
}

func run(ctx context.Context) (exit int, err error) {
	dir := flag.String("kit", ".cache/e2e", "`folder` that e2e/fetch filled")
	name := flag.String("kernel", "6.12", "kernel, by its `name` in the kit")
	cpus := flag.Int("cpus", 1, "`number` of cores, of one thread each")
	mib := flag.Int("mib", 1024, "memory in `MiB`")
	instruction := flag.Int("instruction", 0, "the clock counts instructions, of so many `ns` each: 1, 2, 4 to 1024 (default a clock like the host's)")
	timeout := flag.Duration("timeout", 2*time.Hour, "end a guest that takes longer, on the host's clock")
	flag.Parse()
	kit, err := vmtest.Open(*dir)
	if err != nil {
		return 0, fmt.Errorf("%w (go run ./e2e/fetch)", err)
	}
	kernel, ok := kit.Kernel(*name)
	if !ok {
		var names []string
		for _, k := range kit.Kernels {
			names = append(names, k.Name)
		}
		return 2, fmt.Errorf("-kernel %s: the kit has %s", *name, strings.Join(names, ", "))
	}
	programs := filepath.Join(*dir, "programs")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return 0, err
	}
	vminit, err := vmtest.Build(ctx, programs, "internal/vmtest/vminit", false)
	if err != nil {
		return 0, err
	}
	berth, err := vmtest.Build(ctx, programs, "cmd/berth", false)
	if err != nil {
		return 0, err
	}
	machine := vmtest.Machine{Name: "boot", Cores: *cpus, MiB: *mib, VirtualTime: *instruction > 0, Instruction: *instruction}
	result, err := kit.Run(ctx, machine, vmtest.Job{
		Kernel: kernel, Init: vminit, Files: map[string]string{"/bin/berth": berth},
		Args: append([]string{"/bin/berth"}, flag.Args()...), Env: []string{"GOMAXPROCS=" + strconv.Itoa(*cpus)},
		Output: os.Stdout, CPU: *timeout, Timeout: *timeout,
	})
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "boot: %.1f s, of which %.1f s to boot; %.1f s of CPU\n", result.Elapsed.Seconds(), result.Boot.Seconds(), result.CPU.Seconds())
	return result.Exit, nil
}
