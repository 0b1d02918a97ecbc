package noise_test

import (
	"encoding/json"
	"fmt"
	"os/exec"

	"berth.dev/berth/lab/noise"
)

func ExamplePlan() {
	cfg := noise.Config{Kernel: "scan", Threads: 2, Intensity: 100, L3Bytes: 260 << 20}
	size := noise.Plan(cfg, 8<<30)
	fmt.Println(size.Bytes>>20, "MiB")
	fmt.Println(size.Note)
	// Output:
	// 512 MiB
	// working set of a thread is 512 MiB, not 520 (four times the cache): 2 threads may take 1/8 of the memory available
}

// A parent starts a neighbour and reads its work.
func ExampleNewCounters() {
	cfg := noise.Config{Kernel: "spin", Threads: 1, Intensity: 50, Seed: 1}
	counters, err := noise.NewCounters(cfg.Threads)
	if err != nil {
		fmt.Println(err)
		return
	}
	cmd := exec.Command("berth", "__noise")
	cmd.ExtraFiles = append(cmd.ExtraFiles, counters.File())
	line, _ := json.Marshal(cfg)
	fmt.Printf("%s\n", line)
	// Start cmd, send it the line, await noise.Ready on its output, and read
	// counters.Total() at any instant.
	fmt.Println(counters.Total())
	fmt.Println(counters.Close())
	// Output:
	// {"kernel":"spin","threads":1,"intensity":50,"seed":1}
	// 0
	// <nil>
}
