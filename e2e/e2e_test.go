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
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
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
	kit := openKit(t)
	programs := build(t)
	for _, kernel := range kit.Kernels {
		t.Run("kernel="+kernel.Name, func(t *testing.T) {
			for _, m := range machines() {
				t.Run("machine="+m.Name, func(t *testing.T) {
					t.Parallel()
					recorded := runGuest(t, kit, m, programs.job(kernel))
					if *update && recorded != "" {
						record(t, kernel, recorded)
					}
				})
			}
		})
	}
}

// openKit returns what e2e/fetch has fetched, or skips.
func openKit(t *testing.T) *vmtest.Kit {
	t.Helper()
	if os.Getenv(Env) == "" {
		t.Skipf("guests run where %s is set: make e2e", Env)
	}
	dir := cmp.Or(os.Getenv("BERTH_E2E_KIT"), "../.cache/e2e")
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

func build(t *testing.T) programs {
	t.Helper()
	dir := t.TempDir()
	compile := func(pkg string, test bool) string {
		file, err := vmtest.Build(t.Context(), dir, pkg, test)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	return programs{
		init:  compile("internal/vmtest/vminit", false),
		tests: compile("e2e/guest", true),
		berth: compile("cmd/berth", false),
	}
}

func (p programs) job(kernel vmtest.Kernel) vmtest.Job {
	return vmtest.Job{
		Kernel:  kernel,
		Init:    p.init,
		Files:   map[string]string{"/bin/guest.test": p.tests, "/bin/berth": p.berth},
		Args:    []string{"/bin/guest.test", "-test.v=test2json", "-test.run=" + *guestRun},
		Env:     []string{"BERTH_KERNEL=" + kernel.Name, "BERTH_UPDATE=" + strconv.FormatBool(*update)},
		Modules: []string{"configfs", "null_blk"},
		Timeout: 5 * time.Minute,
	}
}

// record replaces the recording of a kernel.
func record(t *testing.T, kernel vmtest.Kernel, text string) {
	t.Helper()
	file := "../internal/fakekernel/parity/testdata/" + kernel.Name + ".txt"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// runGuest boots one guest and makes each test in it a sub-test of t, as soon
// as it ends. It returns what the guest recorded, if it ran to its end.
func runGuest(t *testing.T, kit *vmtest.Kit, m vmtest.Machine, job vmtest.Job) (recorded string) {
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
	unfinished, recorded := report(t, events)
	end := <-ended
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
func report(t *testing.T, events io.Reader) (logs map[string]string, recorded string) {
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
	programs := build(t)
	for i := range boots {
		job := programs.job(kit.Kernels[i%len(kit.Kernels)])
		job.Args = []string{"/bin/guest.test", "-test.run=TestKernel"}
		result, err := kit.Run(t.Context(), machines()[0], job)
		if err != nil {
			t.Fatalf("boot %d, kernel %s: %v", i, job.Kernel.Name, err)
		}
		if result.Exit != 0 {
			t.Errorf("boot %d, kernel %s: exit status %d", i, job.Kernel.Name, result.Exit)
		}
	}
}
