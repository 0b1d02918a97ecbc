package guard

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// TestRecordRunDelay records what a loop is told of a victim in short windows, for
// guard/control/testdata: BERTH_TEST_RECORD is "VICTIM SUSPECT SECONDS FILE", two groups that are
// there. Each line has the milliseconds, cpu.idle of the suspect's group, detect.RunDelay but for
// its last two, and strength and Typical of the symptom. docs/measurements/guard-d3.sh runs it.
func TestRecordRunDelay(t *testing.T) {
	var victim, suspect, file string
	var seconds int
	if _, err := fmt.Sscan(os.Getenv("BERTH_TEST_RECORD"), &victim, &suspect, &seconds, &file); err != nil {
		t.Skip("needs BERTH_TEST_RECORD: two groups of this host, a time, and a file")
	}
	host, err := OpenHost("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	d, err := detect.New(detect.Config{Near: watch.Time(FastWindow)})
	if err != nil {
		t.Fatal(err)
	}
	d.Track(detect.Workload{Group: victim, Sensitive: true})
	if err := host.Focus([]string{victim}); err != nil {
		t.Fatal(err)
	}
	if err := host.Arm(true); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(out)
	began := time.Now()
	var samples []watch.Sample
	for time.Since(began) < time.Duration(seconds)*time.Second {
		time.Sleep(FastWindow - time.Since(began)%FastWindow)
		now := watch.Time(time.Since(began))
		if samples, err = host.TickNear(now, samples[:0]); err != nil {
			t.Fatal(err)
		}
		d.Near().Observe(samples)
		d.Near().Judge(now)
		idle, _ := os.ReadFile("/sys/fs/cgroup/cpu/" + suspect + "/cpu.idle")
		r, ok := d.Near().RunDelay(victim, suspect, 1)
		s, known := d.Near().Symptom(victim, detect.CPU)
		if ok && known {
			fmt.Fprintf(w, "%d,%s,%.3f,%.3f,%.3f,%.2f,%.2f\n", time.Duration(now).Milliseconds(), strings.TrimSpace(string(idle)), r.Wait, r.Others, r.Suspect, s.Strength, s.Typical)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
