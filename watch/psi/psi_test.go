package psi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
)

const (
	some = "some avg10=12.50 avg60=0.05 avg300=100.00 total=2000001\n"
	full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
)

func TestParse(t *testing.T) {
	t.Parallel()
	someLine := Line{Avg10: 0.125, Avg60: 0.0005, Avg300: 1, Total: 2000001 * time.Microsecond}
	fullLine := Line{Total: 7 * time.Microsecond}
	for _, tc := range []struct {
		name, text string
		want       Pressure
		wantErr    string
	}{
		{name: "both", text: some + full, want: Pressure{Some: someLine, Full: fullLine, HasSome: true, HasFull: true}},
		{name: "some only", text: some, want: Pressure{Some: someLine, HasSome: true}},
		{name: "full only", text: full, want: Pressure{Full: fullLine, HasFull: true}},
		{name: "no last newline", text: strings.TrimSuffix(some, "\n"), want: Pressure{Some: someLine, HasSome: true}},
		{name: "new field", text: strings.Replace(full, " total", " avg900=1.00 total", 1), want: Pressure{Full: fullLine, HasFull: true}},

		{name: "empty", text: "", wantErr: "no lines"},
		{name: "other line", text: "most avg10=0.00\n", wantErr: "not some or full"},
		{name: "twice", text: some + some, wantErr: "second"},
		{name: "cut short", text: "some avg10=0.00 avg60=0.00", wantErr: "2 of avg10"},
		{name: "above 100 %", text: strings.Replace(some, "12.50", "100.01", 1), wantErr: "not a percentage"},
		{name: "not a number", text: strings.Replace(some, "12.50", "NaN", 1), wantErr: "not a percentage"},
		{name: "word", text: strings.Replace(some, "12.50", "x", 1), wantErr: "invalid syntax"},
		{name: "negative", text: strings.Replace(some, "2000001", "-1", 1), wantErr: "invalid syntax"},
		{name: "too large", text: strings.Replace(some, "2000001", "18446744073709551615", 1), wantErr: "too large"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(tc.text))
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// failing fails every open like a kernel without pressure accounting.
type failing struct{}

func (failing) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EOPNOTSUPP}
}

func (failing) Stat(name string) (fs.FileInfo, error) { return nil, nil }

func TestRead(t *testing.T) {
	t.Parallel()
	host := fstest.MapFS{
		"proc/pressure/cpu": {Data: []byte(some)}, "proc/pressure/io": {Data: []byte("x")},
	}
	if p, err := Read(host, "proc/pressure/cpu"); err != nil || !p.HasSome {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := Read(host, "proc/pressure/io"); err == nil || !strings.Contains(err.Error(), "parse proc/pressure/io") {
		t.Errorf("garbage: %v", err)
	}
	if _, err := Read(host, "proc/pressure/irq"); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "CONFIG_IRQ_TIME_ACCOUNTING") {
		t.Errorf("no file: %v, want not supported", err)
	}
	if _, err := Read(host, "proc/pressure/memory"); !errors.Is(err, kernel.ErrNotSupported) || strings.Contains(err.Error(), "IRQ") {
		t.Errorf("no file: %v, want not supported and nothing about IRQ", err)
	}
	if _, err := Read(host, "group/cpu.pressure"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no group: %v, want fs.ErrNotExist", err)
	}
	if _, err := Read(failing{}, "proc/pressure/cpu"); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "psi=1") {
		t.Errorf("switched off: %v, want not supported", err)
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	text := []byte(some + full)
	if n := testing.AllocsPerRun(100, func() { Parse(text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTrigger(t *testing.T) {
	t.Parallel()
	if got := (Trigger{Stall: 150 * time.Millisecond, Window: time.Second}).String(); got != "some 150000 1000000" {
		t.Errorf("%q", got)
	}
	if got := (Trigger{Full: true, Stall: time.Microsecond, Window: 2 * time.Second}).String(); got != "full 1 2000000" {
		t.Errorf("%q", got)
	}
	for _, tc := range []struct {
		stall, window time.Duration
		want          string
	}{
		{0, time.Second, "stall"}, {-1, time.Second, "stall"}, {2 * time.Second, time.Second, "stall"}, {1, time.Second, "stall"},
		{1, 0, "window"}, {1, 11 * time.Second, "window"}, {1, -1, "window"},
	} {
		if err := (Trigger{Stall: tc.stall, Window: tc.window}).Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v in %v: %v, want a complaint about the %s", tc.stall, tc.window, err, tc.want)
		}
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tc := range []struct {
		name   string
		path   string
		window time.Duration
		err    error
		want   error
		text   string
	}{
		{"window", dir + "/cpu", time.Second, syscall.EINVAL, kernel.ErrNotSupported, "multiple of 2s"},
		{"right", dir + "/cpu", time.Second, syscall.EPERM, kernel.ErrNotSupported, "CAP_SYS_RESOURCE"},
		{"no file", dir + "/cpu", time.Second, syscall.ENOENT, kernel.ErrNotSupported, "CONFIG_PSI"},
		{"switched off", dir + "/cpu", time.Second, syscall.EOPNOTSUPP, kernel.ErrNotSupported, "psi=1"},
		{"group gone", dir + "/gone/cpu", time.Second, syscall.ENOENT, fs.ErrNotExist, ""},
		{"something else", dir + "/cpu", 2 * time.Second, syscall.EINVAL, syscall.EINVAL, ""},
	} {
		err := refusal(tc.path, Trigger{Stall: 1, Window: tc.window}, tc.err)
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %v with %q", tc.name, err, tc.want, tc.text)
		}
	}
}

func TestMonitorCancel(t *testing.T) {
	t.Parallel()
	m, err := NewMonitor()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := m.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if err := m.Add("/nowhere/cpu", Trigger{Stall: time.Second, Window: 2 * time.Second}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("add a file that is not there: %v", err)
	}
	if err := m.Add("/nowhere/cpu", Trigger{}); err == nil {
		t.Error("add a trigger without a window: no error")
	}
	m.Remove("/nowhere/cpu")
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// pressured returns a new v2 group with pressure, and what leaves it empty.
func pressured(t *testing.T) string {
	t.Helper()
	var why error
	for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		dir, err := os.MkdirTemp(tree, "berth-test-")
		if err == nil {
			t.Cleanup(func() { os.Remove(dir) })
			_, err = os.Stat(dir + "/cpu.pressure")
		}
		if err == nil {
			return dir
		}
		why = err
	}
	t.Skipf("no v2 group with pressure can be made: %v", why)
	return ""
}

// The removal of a group ends its trigger with an event.
func TestMonitorGone(t *testing.T) {
	t.Parallel()
	dir := pressured(t)
	m, err := NewMonitor()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	path := dir + "/cpu.pressure"
	trigger := Trigger{Stall: time.Second, Window: 2 * time.Second}
	if err := m.Add(path, trigger); errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := m.Add(path, trigger); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second trigger: %v", err)
	}
	go os.Remove(dir)
	event, err := m.Wait(t.Context())
	if want := (Event{path, true}); err != nil || event != want {
		t.Errorf("%+v, %v; want %+v", event, err, want)
	}
	if len(m.files)+len(m.paths) != 0 {
		t.Error("the trigger is still there")
	}
}

// Threads that share one CPU put pressure on it, which fires a trigger.
func TestMonitorFires(t *testing.T) {
	t.Parallel()
	m, err := NewMonitor()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	path := "/proc/pressure/cpu"
	err = m.Add(path, Trigger{Stall: 5 * time.Millisecond, Window: 500 * time.Millisecond})
	if errors.Is(err, kernel.ErrNotSupported) {
		err = m.Add(path, Trigger{Stall: 5 * time.Millisecond, Window: 2 * time.Second})
	}
	if err != nil {
		t.Skip(err)
	}
	stop := contend(t)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if event, err := m.Wait(ctx); err != nil || event != (Event{Path: path}) {
		t.Errorf("%+v, %v", event, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(some + full))
	f.Add([]byte("some avg10=1e1 avg60=0x1p1 avg300=1 total=0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			if p != (Pressure{}) {
				t.Errorf("error %v with a value %+v", err, p)
			}
			return
		}
		for _, l := range []Line{p.Some, p.Full} {
			if !(l.Avg10 >= 0 && l.Avg60 >= 0 && l.Avg300 >= 0 && l.Avg10 <= 1 && l.Avg60 <= 1 && l.Avg300 <= 1) || l.Total < 0 {
				t.Errorf("%+v", l)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	text := []byte(some + full)
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
