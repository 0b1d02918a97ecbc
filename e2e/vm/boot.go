package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/vmtest"
)

// boot runs berth in a guest and returns its exit status.
func boot(ctx context.Context, args []string) (exit int, err error) {
	flags := flag.NewFlagSet("boot", flag.ExitOnError)
	dir := flags.String("kit", kitDir, "`folder` that fetch filled")
	name := flags.String("kernel", "6.12", "kernel, by its `name` in the kit")
	cpus := flags.Int("cpus", 1, "`number` of cores, of one thread each")
	mib := flags.Int("mib", 1024, "memory in `MiB`")
	instruction := flags.Int("instruction", 0, "the clock counts instructions, of so many `ns` each: 1, 2, 4 to 1024 (default a clock like the host's)")
	timeout := flags.Duration("timeout", 2*time.Hour, "end a guest that takes longer, on the host's clock")
	_ = flags.Parse(args) // exits on an error
	kit, err := vmtest.Open(*dir)
	if err != nil {
		return 0, fmt.Errorf("%w (go run ./e2e/vm fetch)", err)
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
		Args: append([]string{"/bin/berth"}, flags.Args()...), Env: []string{"GOMAXPROCS=" + strconv.Itoa(*cpus)},
		Output: os.Stdout, CPU: *timeout, Timeout: *timeout,
	})
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "boot: %.1f s, of which %.1f s to boot; %.1f s of CPU\n", result.Elapsed.Seconds(), result.Boot.Seconds(), result.CPU.Seconds())
	return result.Exit, nil
}
