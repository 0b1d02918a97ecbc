package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/vmtest"
)

// boot runs berth, or with -systemd a program, in a guest and returns its exit status.
func boot(ctx context.Context, args []string) (exit int, err error) {
	flags := flag.NewFlagSet("boot", flag.ExitOnError)
	dir := flags.String("kit", kitDir, "`folder` that fetch filled")
	name := flags.String("kernel", "6.12", "kernel, by its `name` in the kit")
	cpus := flags.Int("cpus", 1, "`number` of cores, of one thread each")
	mib := flags.Int("mib", 1024, "memory in `MiB`")
	instruction := flags.Int("instruction", 0, "the clock counts instructions, of so many `ns` each: 1, 2, 4 to 1024 (default a clock like the host's)")
	systemd := flags.Bool("systemd", false, "boot the root file system whose PID 1 is systemd, and run there what follows, not berth")
	files := map[string]string{}
	flags.Func("file", "`NAME=FILE`: the guest has the host's FILE as NAME, executable; may be repeated", func(text string) error {
		name, file, ok := strings.Cut(text, "=")
		if !ok || !strings.HasPrefix(name, "/") {
			return errors.New("want /NAME=FILE")
		}
		files[name] = file
		return nil
	})
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
	files["/bin/berth"] = berth
	command := append([]string{"/bin/berth"}, flags.Args()...)
	disk := ""
	if *systemd {
		if disk = kit.Disk; disk == "" {
			return 2, errors.New("-systemd: the kit has no root file system (go run ./e2e/vm fetch -systemd)")
		}
		if command = flags.Args(); len(command) == 0 {
			return 2, errors.New("-systemd: which program is to run in the guest?")
		}
	}
	machine := vmtest.Machine{Name: "boot", Cores: *cpus, MiB: *mib, VirtualTime: *instruction > 0, Instruction: *instruction}
	result, err := kit.Run(ctx, machine, vmtest.Job{
		Kernel: kernel, Init: vminit, Files: files, Disk: disk,
		Args: command, Env: []string{"GOMAXPROCS=" + strconv.Itoa(*cpus)},
		Output: os.Stdout, CPU: *timeout, Timeout: *timeout,
	})
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "boot: %.1f s, of which %.1f s to boot; %.1f s of CPU\n", result.Elapsed.Seconds(), result.Boot.Seconds(), result.CPU.Seconds())
	return result.Exit, nil
}
