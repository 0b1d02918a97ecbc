package load

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"berth.dev/berth/lab/stats"
)

// BenchmarkLag shows how late requests are sent, alone and beside four busy
// processes: by a goroutine that sleeps until each is due, by the generator,
// and by the generator under SCHED_FIFO. Each iteration is a run of two seconds.
// What the hypervisor took in it (steal-ms, of all CPUs) shows as lag of any.
//
//	go test -run '^$' -bench Lag -benchtime 1x ./lab/load
func BenchmarkLag(b *testing.B) {
	for _, busy := range []int{0, 4} {
		for _, rate := range []float64{1000, 2000, 10000} {
			for _, variant := range []struct {
				name, child string
				priority    int
			}{
				{"goroutines", "pacer", 0},
				{"generator-OTHER", "generator", 0},
				{"generator-FIFO", "generator", 50},
			} {
				b.Run(fmt.Sprintf("busy=%d/rate=%v/%s", busy, rate, variant.name), func(b *testing.B) {
					server := startChild(b, "server")
					var addr string
					server.hear(b, &addr)
					config := Config{
						Target: Target{Addr: addr, Path: "/"}, Rate: rate, Connections: 256, Seed: 1,
						Settle: 200 * time.Millisecond, Window: 2 * time.Second, Grace: time.Second,
					}
					keepBusy(b, busy)
					var reports []Report
					stolen := stealTicks(b)
					for b.Loop() {
						generator := startChild(b, variant.child)
						if variant.priority > 0 {
							if err := schedFIFO(generator.cmd.Process.Pid, variant.priority); err != nil {
								b.Skipf("no SCHED_FIFO here: %v", err)
							}
						}
						reports = append(reports, generator.run(b, config))
					}
					const tickMillis = 10 // USER_HZ is 100 everywhere
					b.ReportMetric(float64(stealTicks(b)-stolen)*tickMillis, "steal-ms")
					reportLag(b, reports)
				})
			}
		}
	}
}

// keepBusy occupies the CPUs until the benchmark is over: with stress-ng where
// it is installed, otherwise with processes that spin.
func keepBusy(b *testing.B, n int) {
	if n == 0 {
		return
	}
	if path, err := exec.LookPath("stress-ng"); err == nil {
		start(b, exec.Command(path, "--cpu", fmt.Sprint(n), "--quiet"))
	} else {
		for range n {
			startChild(b, "spin")
		}
	}
	time.Sleep(500 * time.Millisecond) // until they all run
}

// stealTicks reads the time stolen from all CPUs so far, from /proc/stat.
func stealTicks(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	var ticks [8]int64 // user nice system idle iowait irq softirq steal
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &ticks[0], &ticks[1], &ticks[2],
		&ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]); err != nil {
		b.Fatal(err)
	}
	return ticks[7]
}

// reportLag publishes the merged histograms of some runs.
func reportLag(b *testing.B, reports []Report) {
	lag, queue, response := stats.NewHistogram(), stats.NewHistogram(), stats.NewHistogram()
	var cpu, seconds float64
	for _, r := range reports {
		cpu += r.CPUSeconds
		seconds += float64(r.WindowEnd-r.WindowStart) / 1e9
		for _, s := range r.Seconds {
			lag.Merge(decodeHistogram(b, s.Lag))
			queue.Merge(decodeHistogram(b, s.Queue))
			response.Merge(decodeHistogram(b, s.Response))
		}
	}
	b.ReportMetric(float64(lag.ValueAtQuantile(50)), "lag-p50-us")
	b.ReportMetric(float64(lag.ValueAtQuantile(99)), "lag-p99-us")
	b.ReportMetric(float64(lag.ValueAtQuantile(99.9)), "lag-p99.9-us")
	b.ReportMetric(float64(queue.ValueAtQuantile(99)), "queue-p99-us")
	b.ReportMetric(float64(response.ValueAtQuantile(99)), "response-p99-us")
	b.ReportMetric(100*cpu/seconds, "cpu-%")
	b.ReportMetric(0, "ns/op") // it is the length of the run
	b.Logf("%s %q", reports[0].Policy, reports[0].Perturbed)
}
