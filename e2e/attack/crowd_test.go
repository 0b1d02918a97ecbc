package attack

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// makeMany makes groups in directories: their number, then the directories.
var makeMany = newTrick("make-many", func(args []string) error {
	count, err := strconv.Atoi(args[0])
	for i := range count {
		for _, dir := range args[1:] {
			err = errors.Join(err, os.Mkdir(path.Join(dir, fmt.Sprintf("g%05d", i)), 0o755))
		}
	}
	return err
})

// churn makes and removes groups in a directory for some seconds.
var churn = newTrick("churn", func(args []string) error {
	seconds, err := strconv.Atoi(args[0])
	for end := time.Now().Add(time.Duration(seconds) * time.Second); err == nil && time.Now().Before(end); {
		dir := path.Join(args[1], "churn")
		err = errors.Join(os.Mkdir(dir, 0o755), os.Remove(dir))
	}
	return err
})

// taken is what a process takes of the host.
type taken struct {
	files, watches int
	rss            int // KiB
	cpu            int // ticks
}

func (p *process) taken() (n taken) {
	p.b.Helper()
	proc := fmt.Sprintf("/proc/%d", p.Process.Pid)
	infos, err := filepath.Glob(proc + "/fdinfo/*")
	if err != nil {
		p.b.Fatal(err)
	}
	n.files = len(infos)
	for _, info := range infos {
		text, _ := os.ReadFile(info) // it may have been closed
		n.watches += strings.Count(string(text), "inotify wd:")
	}
	for line := range strings.Lines(p.b.read(proc + "/status")) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n.rss, _ = strconv.Atoi(strings.Fields(text)[0])
		}
	}
	stat := p.b.read(proc + "/stat")
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	for _, field := range fields[11:13] { // utime and stime
		ticks, _ := strconv.Atoi(field)
		n.cpu += ticks
	}
	return n
}

// TestCrowd has a stranger make 3,000 groups in a subtree of its own, and then make and
// remove groups there as fast as it can, while the agent runs with a guard that observes.
func TestCrowd(t *testing.T) {
	boxed(t, func(b *box) {
		agent := b.agent("workloads: [{name: web, match: {unit: web.service}, class: LSE, cpus: 1}]\nreserved: \"0\"\n" +
			"agent: {rescan: 2s}\nguard: {mode: observe}\n")
		theirs := b.group(stranger, "user", "cpu", "cpuset", "cpuacct", "memory")
		time.Sleep(6 * time.Second) // the guard has looked around
		before := agent.taken()
		if out, code := b.run(stranger, makeMany.with(append([]string{"3000"}, theirs...)...)...); code != 0 {
			b.Fatal(out)
		}
		agent.awaitText("subtree user of user 65534")
		time.Sleep(8 * time.Second) // several scans, and a look of the guard
		after := agent.taken()
		b.Logf("before %+v, with 3,000 groups %+v", before, after)
		if more := after.files - before.files; more > 1000 {
			b.Errorf("%d descriptors more", more)
		}
		if more := after.rss - before.rss; more > 30<<10 {
			b.Errorf("%d KiB more", more)
		}
		if more := after.watches - before.watches; more > 10 {
			b.Errorf("%d inotify watches more", more)
		}
		if out := agent.out.String(); !strings.Contains(out, "3001 groups or more, 1 of them looked at: it is taken as one group") || strings.Contains(out, "it has ended") {
			b.Errorf("the agent says:\n%s", out)
		}
		if out, code := b.run(root, berth, "diagnose", "--for", "5s"); code != 0 && code != 3 || !strings.Contains(out, "subtree user") {
			b.Errorf("diagnose: exit status %d\n%s", code, out)
		}
		// Others' groups are placed as before.
		begin := time.Now()
		b.group(root, "web.service", "cpu", "cpuset")
		agent.awaitText("workload=web:web.service")
		b.Logf("placed after %v", time.Since(begin))

		calm := b.group(stranger, "other", "cpuset")
		atRest := agent.taken()
		churner := b.start(stranger, churn.with("10", calm[0])...)
		time.Sleep(9 * time.Second)
		busy, its := agent.taken(), churner.taken()
		if code := churner.code(); code != 0 {
			b.Fatal(churner.out)
		}
		b.Logf("in 9 s the stranger used %d ticks of CPU time, the agent %d", its.cpu, busy.cpu-atRest.cpu)
		if its.cpu > 100 && busy.cpu-atRest.cpu > its.cpu/2 {
			b.Errorf("the agent used %d ticks of CPU time for the %d that the stranger used", busy.cpu-atRest.cpu, its.cpu)
		}
		if out := b.ps(); !strings.Contains(out, "web:web.service") {
			b.Errorf("the workload is not listed:\n%s", out)
		}
	})
}
