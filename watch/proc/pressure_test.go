package proc

import (
	"errors"
	"io/fs"
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

func TestParsePressure(t *testing.T) {
	t.Parallel()
	const someTime, fullTime = 2000001 * time.Microsecond, 7 * time.Microsecond
	for _, tc := range []struct {
		name, text string
		want       Pressure
		wantErr    string
	}{
		{name: "both", text: some + full, want: Pressure{Some: someTime, Full: fullTime, HasSome: true, HasFull: true}},
		{name: "some only", text: some, want: Pressure{Some: someTime, HasSome: true}},
		{name: "full only", text: full, want: Pressure{Full: fullTime, HasFull: true}},
		{name: "no last newline", text: strings.TrimSuffix(some, "\n"), want: Pressure{Some: someTime, HasSome: true}},
		{name: "new field", text: strings.Replace(full, " total", " avg900=1.00 total", 1), want: Pressure{Full: fullTime, HasFull: true}},

		{name: "empty", text: "", wantErr: "no lines"},
		{name: "other line", text: "most avg10=0.00\n", wantErr: "not some or full"},
		{name: "twice", text: some + some, wantErr: "second"},
		{name: "cut short", text: "some avg10=0.00 avg60=0.00", wantErr: "no total"},
		{name: "no number", text: "some avg10=0.00 total=", wantErr: "invalid syntax"},
		{name: "word", text: strings.Replace(some, "2000001", "x", 1), wantErr: "invalid syntax"},
		{name: "negative", text: strings.Replace(some, "2000001", "-1", 1), wantErr: "invalid syntax"},
		{name: "too large", text: strings.Replace(some, "2000001", "18446744073709551615", 1), wantErr: "too large"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParsePressure([]byte(tc.text))
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

func TestReadPressure(t *testing.T) {
	t.Parallel()
	host := fstest.MapFS{
		"proc/pressure/cpu": {Data: []byte(some)}, "proc/pressure/io": {Data: []byte("x")},
	}
	if p, err := ReadPressure(host, "proc/pressure/cpu"); err != nil || !p.HasSome {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := ReadPressure(host, "proc/pressure/io"); err == nil || !strings.Contains(err.Error(), "parse proc/pressure/io") {
		t.Errorf("garbage: %v", err)
	}
	if _, err := ReadPressure(host, "proc/pressure/irq"); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "CONFIG_IRQ_TIME_ACCOUNTING") {
		t.Errorf("no file: %v, want not supported", err)
	}
	if _, err := ReadPressure(host, "proc/pressure/memory"); !errors.Is(err, kernel.ErrNotSupported) || strings.Contains(err.Error(), "IRQ") {
		t.Errorf("no file: %v, want not supported and nothing about IRQ", err)
	}
	if _, err := ReadPressure(host, "group/cpu.pressure"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no group: %v, want fs.ErrNotExist", err)
	}
	if _, err := ReadPressure(failing{}, "proc/pressure/cpu"); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "psi=1") {
		t.Errorf("switched off: %v, want not supported", err)
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	text := []byte(some + full)
	if n := testing.AllocsPerRun(100, func() { ParsePressure(text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParsePressure(f *testing.F) {
	f.Add([]byte(some + full))
	f.Add([]byte("some avg10=1e1 avg60=0x1p1 avg300=1 total=0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParsePressure(text)
		if err != nil {
			if p != (Pressure{}) {
				t.Errorf("error %v with a value %+v", err, p)
			}
			return
		}
		if p.Some < 0 || p.Full < 0 {
			t.Errorf("%+v", p)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	text := []byte(some + full)
	for b.Loop() {
		if _, err := ParsePressure(text); err != nil {
			b.Fatal(err)
		}
	}
}
