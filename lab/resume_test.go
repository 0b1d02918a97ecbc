package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/machine"
)

// A run goes on under the conditions it began with, or not at all.
func TestResumeNeedsTheSameConditions(t *testing.T) {
	t.Parallel()
	began := func() Header {
		return Header{
			Schema: Schema, Program: Program{Version: "v1", Go: "go1.26"}, Host: Host{Kernel: "6.12", Machine: &machine.Machine{Model: "x"}},
			Setup: Setup{Backend: "cgroup v2", CPUs: "0-3", TenantCPUs: 1.5},
		}
	}
	for name, tc := range map[string]struct {
		change func(*Header)
		want   string // in the error; "" for none
	}{
		"the same":        {func(h *Header) { h.Started = time.Unix(9, 0) }, ""},
		"not calibrated":  {func(h *Header) { h.Setup.TenantCPUs = 0 }, ""},
		"another kernel":  {func(h *Header) { h.Host.Kernel = "6.13" }, `kernel is not that of the run so far: "6.13", was "6.12"`},
		"another machine": {func(h *Header) { h.Host.Machine = &machine.Machine{Model: "y"} }, "machine"},
		"less memory":     {func(h *Header) { h.Host.MemoryBytes = 5 }, "memoryBytes"},
		"another version": {func(h *Header) { h.Program.Version = "v2" }, "version"},
		"no groups":       {func(h *Header) { h.Setup.Backend = "sched" }, "backend"},
		"other CPUs":      {func(h *Header) { h.Setup.CPUs = "0-1" }, "shared CPUs"},
		"another place":   {func(h *Header) { h.Setup.GeneratorCPUs = "7" }, "CPUs of the generator"},
	} {
		h, now := began(), began()
		tc.change(&now)
		err := h.resume(now)
		if tc.want == "" {
			if err != nil || len(h.Resumed) != 1 || h.Setup.TenantCPUs != 1.5 {
				t.Errorf("%s: %v, resumed %v, setup %+v", name, err, h.Resumed, h.Setup)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "resume: ") {
			t.Errorf("%s: %v, want an error with %q", name, err, tc.want)
		}
	}
}

func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	complete := fakeResult(t, map[string]fake{Baseline: {scale: 1}})
	unfinished := fakeResult(t, nil)
	unfinished.Complete, unfinished.Experiment.Blocks = false, 0
	for want, store := range map[string]func(dir string) error{
		"complete":     func(dir string) error { return WriteFile(filepath.Join(dir, ResultFile), complete) },
		"rounds: 0":    func(dir string) error { return WriteFile(filepath.Join(dir, ResultFile), unfinished) },
		"no such file": func(string) error { return nil },
		"schema": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ResultFile), []byte(`{"schema":"berth.dev/lab/v9"}`), 0o600)
		},
	} {
		dir := t.TempDir()
		if err := store(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := ResumeIsolate(t.Context(), Options{Dir: dir, UndoLogDir: t.TempDir(), Unprivileged: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// The requests of finished rounds stay; those of a round that has no result go, and so
// does what a kill cut short.
func TestRequestLogGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := openRequestLog(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	add := func(block int, cell string) {
		t.Helper()
		if _, err := l.file().WriteAt([]byte("seq,due_ns\n0,5\n1,9\n"), 0); err != nil {
			t.Fatal(err)
		}
		if err := l.add(block, cell); err != nil {
			t.Fatal(err)
		}
	}
	add(0, "baseline'")
	add(0, "idle")
	add(1, "idle")
	path := filepath.Join(dir, RequestsFile)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-3); err != nil { // killed: no end, and not all that was written
		t.Fatal(err)
	}
	finished := func(cell string, block int) bool { return block == 0 }
	for range 2 { // interrupted twice
		if l, err = openRequestLog(dir, finished); err != nil {
			t.Fatal(err)
		}
	}
	add(1, "idle")
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	want := "block,scenario,seq,due_ns\n0,baseline',0,5\n0,baseline',1,9\n0,idle,0,5\n0,idle,1,9\n1,idle,0,5\n1,idle,1,9\n"
	if got := readLog(t, dir); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := openRequestLog(t.TempDir(), finished); err == nil {
		t.Error("a log that is not there goes on")
	}
}
