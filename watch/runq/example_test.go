package runq_test

import (
	"errors"
	"fmt"
	"os"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/runq"
)

func ExampleHistogram_Quantile() {
	var h runq.Histogram
	h[5] = 90  // 640 to 768 ns
	h[90] = 10 // 1.3 to 1.4 ms
	from, to, _ := h.Quantile(0.99)
	fmt.Printf("of %d waits, p99 is between %v and %v\n", h.Count(), from, to)
	// Output: of 100 waits, p99 is between 1.31072ms and 1.441792ms
}

// Who has the CPU while a service waits for it.
func ExampleProbe() {
	probe, err := runq.Open(runq.Options{Root: "/sys/fs/cgroup"})
	if errors.Is(err, kernel.ErrNotSupported) {
		fmt.Println("not on this host:", err)
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer probe.Close()
	var before, after, second runq.Snapshot
	if err := errors.Join(probe.Add("/system.slice/api.service"), probe.Arm(), probe.Read(&before)); err != nil {
		fmt.Println(err)
		return
	}
	time.Sleep(time.Second)
	if err := probe.Read(&after); err != nil {
		fmt.Println(err)
		return
	}
	second.Since(&before, &after)
	for _, share := range second.Groups[0].Shares {
		id, _ := share.Culprit.Group()
		name, _ := probe.Name(id)
		fmt.Fprintln(os.Stdout, share.Wait, "for", share.Culprit, name, share.Preemptions)
	}
}
