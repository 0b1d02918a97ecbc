package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/power"
)

// The clock of the shared CPUs follows their load while the plugin runs, with a runtime or
// without, and has its limit back when it ends.
func TestPoolFollowsLoad(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64 // each look finds it 3 s later
	h := newClassHost(t, fakekernel.V2(), func(o *Options) {
		o.Scale = time.Millisecond
		o.Node.Now = func() time.Time { return time.Unix(3*clock.Add(1), 0) }
		o.Node.Classes.Power = &power.Config{
			Profiles: map[string]power.Profile{"follow": {Scale: &power.Scale{Busy: 50, Floor: "2GHz", Hold: "2s"}}}, Shared: "follow",
		}
	})
	file := filepath.Join(h.root.Name(), "proc/stat")
	busy, idle := 0, 0
	pass := func(percent int) { // a window, in which all CPUs did that much
		busy, idle = busy+percent, idle+100-percent
		text := fmt.Sprintf("cpu %d 0 0 %d\n", 8*busy, 8*idle)
		for cpu := range 8 {
			text += fmt.Sprintf("cpu%d %d 0 0 %d\n", cpu, busy, idle)
		}
		must(t, os.WriteFile(file+".next", []byte(text), 0o644))
		must(t, os.Rename(file+".next", file))
	}
	const limit = "sys/devices/system/cpu/cpufreq/policy3/scaling_max_freq"
	comesTo := func(want string, percent int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); h.read(limit) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d%% busy: %s kHz, want %s; heard %v", percent, h.read(limit), want, h.heard.kinds("scaled"))
			}
			pass(percent)
		}
	}
	pass(0)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- h.p.Run(ctx, func() (net.Conn, error) { return nil, errors.New("no runtime") })
	}()
	comesTo("2000000", 5)
	comesTo("3700000", 100)
	comesTo("2000000", 5)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := h.read(limit); got != "3700000" {
		t.Errorf("ended: %s kHz", got)
	}
}
