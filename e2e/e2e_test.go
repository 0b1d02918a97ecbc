// Package e2e boots guests with real kernels and reports the tests that run in
// them: those of e2e/guest. See docs/testing.md.
package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/vmtest"
)

// Env asks for guests: plain go test stays fast where a kit has been fetched.
const Env = "BERTH_TEST_E2E"

var (
	guestRun = flag.String("guest.run", "", "run only those tests in the guests that match this regular expression")
	update   = flag.Bool("update", false, "have the guests record what they else compare with recordings")
)

func TestGuests(t *testing.T) {
	began := time.Now()
	kit := openKit(t)
	if _, ok := kit.Kernel(thorough); !ok {
		t.Errorf("the kit has no kernel %s: some tests run nowhere", thorough)
	}
	programs := build(t, "e2e/guest")
	t.Logf("programs after %.1f s", time.Since(began).Seconds())
	queue := make(chan pair)
	go func() {
		defer close(queue)
		for _, p := range pairs(kit) {
			queue <- p
		}
	}()
	sum := newSummary(began)
	var workers sync.WaitGroup
	for i := range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			if i == 0 {
				defer sum.goOn()
			} else {
				<-sum.alone // the first guest boots sooner by itself
			}
			for p := range queue {
				t.Run("kernel="+p.kernel.Name+"/machine="+p.machine.Name, func(t *testing.T) {
					recorded := runGuest(t, kit, p.machine, programs.job(p.kernel, p.machine), sum)
					if *update && recorded != "" {
						record(t, p.kernel, recorded)
					}
				})
			}
		})
	}
	workers.Wait()
	t.Logf("%v", sum)
}

// pair is a guest.
type pair struct {
	kernel  vmtest.Kernel
	machine vmtest.Machine
}

// thorough is the kernel that runs what takes long, which the others do not.
const thorough = "6.12"

// meets reports whether a machine boots with a kernel. Where the machine is what is tested, or
// is large, one kernel is enough.
func meets(m vmtest.Machine, kernel vmtest.Kernel) bool {
	switch m.Name {
	case "128cpus", "l3-memory-only", "uneven":
		return kernel.Name == thorough
	}
	return true
}

// pairs returns all guests in the order in which they start: a short one, whose
// results come soon, then the longest first, so that all workers end at about the
// same time.
func pairs(kit *vmtest.Kit) []pair {
	var all []pair
	for _, m := range machines() {
		for _, kernel := range slices.Backward(kit.Kernels) {
			if meets(m, kernel) {
				all = append(all, pair{kernel, m})
			}
		}
	}
	last := len(all) - 1
	return append(all[last:], all[:last]...)
}

// summary is what all guests took.
type summary struct {
	began time.Time

	alone chan struct{} // closed by goOn
	goOn  func()

	mu     sync.Mutex
	first  time.Duration // until the first result of a test
	guests int
	cpu    time.Duration // of QEMU
	free   int64         // the least of all nodes, in KiB
	tight  string        // the guest that had no more
}

func newSummary(began time.Time) *summary {
	alone := make(chan struct{})
	return &summary{began: began, alone: alone, goOn: sync.OnceFunc(func() { close(alone) })}
}

func (s *summary) result() {
	s.goOn()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == 0 {
		s.first = time.Since(s.began)
	}
}

func (s *summary) add(name string, r *vmtest.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guests++
	s.cpu += r.CPU
	if free := slices.Min(r.Memory.Lowest); s.tight == "" || free < s.free {
		s.free, s.tight = free, name
	}
}

func (s *summary) String() string {
	return fmt.Sprintf("first result after %.1f s, %d guests after %.0f s; %.0f s of CPU; least free on a node: %d MiB in %s",
		s.first.Seconds(), s.guests, time.Since(s.began).Seconds(), s.cpu.Seconds(), s.free>>10, s.tight)
}

func kitDir() string { return cmp.Or(os.Getenv("BERTH_E2E_KIT"), "../.cache/e2e") }

// openKit returns what e2e/vm has fetched, or skips.
func openKit(t *testing.T) *vmtest.Kit {
	t.Helper()
	if os.Getenv(Env) == "" {
		t.Skipf("guests run where %s is set: make e2e", Env)
	}
	dir := kitDir()
	kit, err := vmtest.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no QEMU and kernels in %s: make e2e-fetch (%v)", dir, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return kit
}

// programs are what runs in guests.
type programs struct{ init, tests, berth string }

// build builds them, with the tests of a package, beside the kit, where the next run
// finds what has not changed.
func build(t *testing.T, tests string) programs {
	t.Helper()
	dir := filepath.Join(kitDir(), "programs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var p programs
	var errs [3]error
	var builds sync.WaitGroup
	for i, program := range []struct {
		file *string
		pkg  string
		test bool
	}{
		{&p.init, "internal/vmtest/vminit", false},
		{&p.tests, tests, true},
		{&p.berth, "cmd/berth", false},
	} {
		builds.Go(func() { *program.file, errs[i] = vmtest.Build(t.Context(), dir, program.pkg, program.test) })
	}
	builds.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p programs) job(kernel vmtest.Kernel, m vmtest.Machine) vmtest.Job {
	job := vmtest.Job{
		Kernel: kernel,
		Init:   p.init,
		Files:  map[string]string{"/bin/guest.test": p.tests, "/bin/berth": p.berth},
		Args:   []string{"/bin/guest.test", "-test.v=test2json", "-test.run=" + *guestRun},
		Env: []string{
			"BERTH_KERNEL=" + kernel.Name,
			"BERTH_THOROUGH=" + strconv.FormatBool(kernel.Name == thorough),
			"BERTH_UPDATE=" + strconv.FormatBool(*update),
		},
		CPU: 10 * time.Minute,
	}
	switch m.Name {
	case withDisk:
		job.Modules = []string{"configfs", "null_blk", "mq-deadline"} // in this order null_blk's disk has none
	case withNet:
		job.Modules = []string{"veth", "sch_htb", "sch_fq", "inet_diag", "tcp_diag"}
	}
	return job
}

// record replaces the recording of a kernel.
func record(t *testing.T, kernel vmtest.Kernel, text string) {
	t.Helper()
	file := "../internal/fakekernel/testdata/" + kernel.Name + ".txt"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// runGuest boots one guest and makes each test in it a sub-test of t, as soon
// as it ends. It returns what the guest recorded, if it ran to its end.
func runGuest(t *testing.T, kit *vmtest.Kit, m vmtest.Machine, job vmtest.Job, sum *summary) (recorded string) {
	output, events := convert(t)
	job.Output = output
	type ending struct {
		result *vmtest.Result
		err    error
	}
	ended := make(chan ending, 1)
	go func() {
		result, err := kit.Run(t.Context(), m, job)
		output.Close()
		ended <- ending{result, err}
	}()
	unfinished, recorded := report(t, events, sum)
	end := <-ended
	if end.err == nil {
		sum.add(t.Name(), end.result)
		t.Log(end.result)
		for _, line := range end.result.Memory.Shortages {
			t.Errorf("the guest had no memory left: %s", line)
		}
	}
	switch {
	case end.err != nil:
		t.Errorf("%v", end.err)
		recorded = ""
	case end.result.Exit != 0 && !t.Failed() || len(unfinished) > 0:
		t.Errorf("tests ended with status %d\nconsole: %s", end.result.Exit, end.result.Console)
	}
	for name, log := range unfinished {
		t.Errorf("%s did not end:\n%s", name, log)
	}
	return recorded
}

// event is a record of go tool test2json.
type event struct{ Action, Test, Output, Key, Value string }

// convert starts go tool test2json.
func convert(t *testing.T) (io.WriteCloser, io.Reader) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "tool", "test2json")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("go tool test2json: %v", err)
		}
	})
	return in, out
}

// report makes each top-level test a sub-test that ends as it did, and returns
// what those that did not end have written. What is written outside of tests
// comes under "". Attributes "recorded" are quoted lines of a recording.
func report(t *testing.T, events io.Reader, sum *summary) (logs map[string]string, recorded string) {
	logs = map[string]string{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Errorf("test2json: %v in %q", err, lines.Text())
			continue
		}
		if e.Action == "attr" && e.Key == "recorded" {
			line, err := strconv.Unquote(e.Value)
			if err != nil {
				t.Errorf("recorded %s: %v", e.Value, err)
			}
			recorded += line
			continue
		}
		top, _, isSub := strings.Cut(e.Test, "/")
		logs[top] += e.Output
		if isSub || top == "" {
			continue
		}
		switch e.Action {
		case "pass", "fail", "skip":
			t.Run(top, func(t *testing.T) { repeat(t, e.Action, logs[top]) })
			if e.Action != "skip" {
				sum.result()
			}
			delete(logs, top)
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("read events: %v", err)
	}
	delete(logs, "")
	return logs, recorded
}

// repeat ends as a test in the guest did.
func repeat(t *testing.T, action, log string) {
	log = strings.TrimSpace(log)
	switch action {
	case "fail":
		t.Errorf("in the guest:\n%s", log)
	case "skip":
		t.Skip(log)
	default:
		t.Log(log)
	}
}

// TestSoak boots one machine as many times in a row as BERTH_TEST_SOAK says.
func TestSoak(t *testing.T) {
	boots, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_TEST_SOAK"), "0"))
	if err != nil {
		t.Fatal(err)
	}
	if boots == 0 {
		t.Skip("BERTH_TEST_SOAK is not set to a number of boots")
	}
	kit := openKit(t)
	programs := build(t, "e2e/guest")
	for i := range boots {
		m := vmtest.Machine{Name: "soak8", Cores: 8}
		job := programs.job(kit.Kernels[i%len(kit.Kernels)], m)
		job.Args = []string{"/bin/guest.test", "-test.run=TestKernel"}
		result, err := kit.Run(t.Context(), m, job)
		if err != nil {
			t.Fatalf("boot %d, kernel %s: %v", i, job.Kernel.Name, err)
		}
		if result.Exit != 0 {
			t.Errorf("boot %d, kernel %s: exit status %d", i, job.Kernel.Name, result.Exit)
		}
		t.Logf("boot %d, kernel %s: %.1f s, %.1f s of CPU", i, job.Kernel.Name, result.Elapsed.Seconds(), result.CPU.Seconds())
	}
}
