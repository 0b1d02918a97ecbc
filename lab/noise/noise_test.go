package noise

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Config{Kernel: "scan", Threads: 2, Intensity: 100}
	with := func(change func(*Config)) Config {
		c := good
		change(&c)
		return c
	}
	for _, tc := range []struct {
		name    string
		cfg     Config
		wantErr string
	}{
		{"least", Config{Kernel: "spin", Threads: 1, Intensity: 1}, ""},
		{"most", Config{Kernel: "scan", Threads: 4096, Intensity: 100, Bytes: 1 << 40, L2Bytes: 1 << 40, L3Bytes: 1 << 40, Seed: math.MaxUint64}, ""},
		{"smallest set", with(func(c *Config) { c.Bytes = 256 << 10 }), ""},

		{"zero", Config{}, `kernel "": not one of spin, scan, random, gemv, write, fork, switch`},
		{"unknown kernel", with(func(c *Config) { c.Kernel = "Scan" }), `kernel "Scan"`},
		{"no threads", with(func(c *Config) { c.Threads = 0 }), "threads 0"},
		{"negative threads", with(func(c *Config) { c.Threads = -1 }), "threads -1"},
		{"too many threads", with(func(c *Config) { c.Threads = 4097 }), "threads 4097"},
		{"no intensity", with(func(c *Config) { c.Intensity = 0 }), "intensity 0"},
		{"too intense", with(func(c *Config) { c.Intensity = 101 }), "intensity 101"},
		{"negative set", with(func(c *Config) { c.Bytes = -1 }), "bytes -1"},
		{"tiny set", with(func(c *Config) { c.Bytes = 256<<10 - 1 }), "bytes 262143"},
		{"huge set", with(func(c *Config) { c.Bytes = 1<<40 + 1 }), "bytes 1099511627777"},
		{"set of a kernel without one", Config{Kernel: "spin", Threads: 1, Intensity: 1, Bytes: 1 << 20}, "spin has no working set"},
		{"negative L2", with(func(c *Config) { c.L2Bytes = -1 }), "l2Bytes -1"},
		{"negative L3", with(func(c *Config) { c.L3Bytes = -1 }), "l3Bytes -1"},
		{"absurd L3", with(func(c *Config) { c.L3Bytes = math.MaxInt64 }), "l3Bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			checkError(t, tc.cfg.Validate(), tc.wantErr)
		})
	}
}

func TestKernels(t *testing.T) {
	t.Parallel()
	for _, k := range Kernels() {
		if k.Name == "" || k.Presses == "" || k.Unit == "" {
			t.Errorf("kernel %+v is not described", k)
		}
		cfg := Config{Kernel: k.Name, Threads: 1, Intensity: 100, Bytes: minBytes}
		if err := cfg.Validate(); (err == nil) != k.Memory {
			t.Errorf("%s with a working set: %v, Memory is %t", k.Name, err, k.Memory)
		}
		cfg.Bytes, cfg.File = 0, "/dev/loop0"
		if err := cfg.Validate(); (err == nil) != k.File {
			t.Errorf("%s with a device: %v, File is %t", k.Name, err, k.File)
		}
		cfg.File, cfg.Address = "", "127.0.0.1:7400"
		if err := cfg.Validate(); (err == nil) != k.Link {
			t.Errorf("%s with an address: %v, Link is %t", k.Name, err, k.Link)
		}
		cfg.Address, cfg.Command = "", []string{"true"}
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s with a command: no error", k.Name)
		}
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for _, tc := range []struct {
		name      string
		cfg       Config
		available int64
		want      int64
		note      string // part of it; "" = none
	}{
		{"four times L3", Config{Kernel: "scan", Threads: 2, L2Bytes: mib, L3Bytes: 32 * mib}, 64 * gib, 64 * mib, ""},
		{"at least four times L2", Config{Kernel: "scan", Threads: 64, L2Bytes: mib, L3Bytes: 32 * mib}, 64 * gib, 4 * mib, ""},
		{"absurd L3, enough memory", Config{Kernel: "scan", Threads: 2, L3Bytes: 260 * mib}, 23 * gib, 520 * mib, ""},
		{"absurd L3, capped", Config{Kernel: "write", Threads: 2, L3Bytes: 260 * mib}, 8 * gib, 512 * mib, "512 MiB, not 520"},
		{"capped within the cache", Config{Kernel: "random", Threads: 2, L3Bytes: 260 * mib}, gib, 64 * mib, "does not exceed the cache by much"},
		{"capped well above the cache", Config{Kernel: "gemv", Threads: 4, L3Bytes: 16 * mib}, 256 * mib, 8 * mib, "8 MiB, not 16"},
		{"capped to the least", Config{Kernel: "scan", Threads: 100, L3Bytes: 32 * mib}, 64 * mib, 256 * kib, "0.25 MiB, not 1.25"},
		{"exactly the cap", Config{Kernel: "scan", Threads: 1, L3Bytes: 32 * mib}, gib, 128 * mib, ""},
		{"no L3", Config{Kernel: "scan", Threads: 1, L2Bytes: 2 * mib}, gib, 8 * mib, ""},
		{"L2 above L3", Config{Kernel: "scan", Threads: 1, L2Bytes: 4 * mib, L3Bytes: 2 * mib}, gib, 16 * mib, ""},
		{"nothing known", Config{Kernel: "scan", Threads: 8}, 0, 16 * mib, ""},
		{"tiny cache", Config{Kernel: "scan", Threads: 1, L2Bytes: 1}, gib, 256 * kib, ""},
		{"given", Config{Kernel: "scan", Threads: 8, Bytes: gib, L3Bytes: 32 * mib}, gib, gib, ""},
		{"given, odd", Config{Kernel: "scan", Threads: 1, Bytes: mib + 4097}, 0, mib, ""},
		{"no working set", Config{Kernel: "spin", Threads: 1, L3Bytes: 32 * mib}, gib, 0, ""},
		{"processes", Config{Kernel: "fork", Threads: 1}, 0, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := Plan(tc.cfg, tc.available)
			if got.Bytes != tc.want {
				t.Errorf("Plan = %d bytes, want %d", got.Bytes, tc.want)
			}
			if (got.Note == "") != (tc.note == "") || !strings.Contains(got.Note, tc.note) {
				t.Errorf("note %q, want %q in it", got.Note, tc.note)
			}
		})
	}
	if note := Plan(Config{Kernel: "gemv", Threads: 4, L3Bytes: 16 * mib}, 256*mib).Note; strings.Contains(note, "by much") {
		t.Errorf("note %q of 128 MiB against a cache of 16", note)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"kernel":"scan","threads":2,"intensity":50,"bytes":1048576,"l3Bytes":33554432,"seed":7}`))
	f.Add([]byte(`{"kernel":"spin","threads":1,"intensity":100}`))
	f.Add([]byte(`{"threads":1e9}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		cfg, err := parseConfig(line)
		if err != nil {
			if !reflect.DeepEqual(cfg, Config{}) {
				t.Errorf("error %v with a value %+v", err, cfg)
			}
			return
		}
		for _, available := range []int64{0, 1, 1 << 50} {
			if n := Plan(cfg, available).Bytes; n < 0 || n%grain != 0 || n > 4*maxBytes {
				t.Errorf("Plan(%+v, %d) = %d bytes", cfg, available, n)
			}
		}
	})
}

func TestPacer(t *testing.T) {
	t.Parallel()
	const ms, us = time.Millisecond, time.Microsecond
	quarter := newPacer(25, 0, 1) // 1 ms of every 4
	second := newPacer(25, 1, 2)  // of two threads: half a period later
	for _, tc := range []struct {
		name  string
		p     pacer
		now   time.Duration
		work  bool
		until time.Duration
	}{
		{"at the start", quarter, 0, true, ms},
		{"within the slice", quarter, 999 * us, true, ms},
		{"slice over", quarter, ms, false, 4 * ms},
		{"just before the next", quarter, 4*ms - 1, false, 4 * ms},
		{"next slice", quarter, 4 * ms, true, 5 * ms},
		{"late for a slice", quarter, 4*ms + 900*us, true, 5 * ms},
		{"missed slices are lost", quarter, 41 * ms, false, 44 * ms},
		{"before the thread's turn", second, ms, false, 2 * ms},
		{"its turn", second, 2 * ms, true, 3 * ms},
		{"its pause", second, 3 * ms, false, 6 * ms},
		{"one percent", newPacer(1, 0, 1), 50 * ms, false, 100 * ms},
		{"ninety-nine", newPacer(99, 0, 1), ms, false, 1_010_101},
	} {
		work, until := tc.p.at(tc.now)
		if work != tc.work || until != tc.until {
			t.Errorf("%s: at(%v) = %t, %v; want %t, %v", tc.name, tc.now, work, until, tc.work, tc.until)
		}
	}
	if p := newPacer(100, 3, 4); p.period != 0 {
		t.Errorf("full intensity pauses: %+v", p)
	}
}

// Over any length of time a thread that is never denied works its share.
func TestPacerShare(t *testing.T) {
	t.Parallel()
	for intensity := 1; intensity < 100; intensity++ {
		p := newPacer(intensity, 0, 1)
		var worked, now time.Duration
		for now < 10*time.Second {
			work, until := p.at(now)
			if until <= now {
				t.Fatalf("intensity %d: at(%v) does not advance", intensity, now)
			}
			if work {
				worked += until - now
			}
			now = until
		}
		if got := 100 * worked.Seconds() / now.Seconds(); math.Abs(got-float64(intensity)) > 0.2 {
			t.Errorf("intensity %d works %.2f %% of the time", intensity, got)
		}
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case want != "" && err == nil:
		t.Fatalf("no error, want %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Fatalf("error %q, want %q in it", err, want)
	}
}
