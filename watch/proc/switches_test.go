package proc

import (
	"os"
	"runtime"
	"testing"
	"testing/fstest"
)

// Two threads, of which one has just gone, as Linux 6.18 writes them.
func TestProcessSwitches(t *testing.T) {
	t.Parallel()
	of := func(switches, involuntary, migrations string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("head (6562, #threads: 1)\n----\nse.exec_start   :       2533774.460873\nse.nr_migrations   :   " + migrations +
			"\nnr_switches      :   " + switches + "\nnr_voluntary_switches  :  2\nnr_involuntary_switches  :  " + involuntary + "\npolicy  :  0\n")}
	}
	files := fstest.MapFS{"proc/7/task/7/sched": of("12", "2", "3"), "proc/7/task/8/sched": of("100", "0", "1"), "proc/7/task/9/comm": {}}
	got, ok, err := ProcessSwitches(files, 7)
	if want := (Switches{112, 2, 4}); got != want || !ok || err != nil {
		t.Errorf("%+v, %v, %v; want %+v", got, ok, err, want)
	}
	if _, ok, err := ProcessSwitches(fstest.MapFS{"proc/7/task/7/comm": {}}, 7); ok || err != nil {
		t.Errorf("without the file: %v, %v", ok, err)
	}
	for _, bad := range []*fstest.MapFile{of("x", "1", "1"), {Data: []byte("nr_switches : 3\n")}, {}} {
		if _, _, err := ProcessSwitches(fstest.MapFS{"proc/7/task/7/sched": bad}, 7); err == nil {
			t.Errorf("read %q", bad.Data)
		}
	}
	if _, _, err := ProcessSwitches(files, 8); err == nil {
		t.Error("read a process that there is not")
	}
}

func TestOwnSwitches(t *testing.T) {
	t.Parallel()
	before, ok, err := ProcessSwitches(os.DirFS("/"), os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Skip("this kernel shows no /proc/PID/task/TID/sched")
	}
	for range 1000 {
		runtime.Gosched()
	}
	after, _, err := ProcessSwitches(os.DirFS("/"), os.Getpid())
	if err != nil || before.All == 0 || after.All < before.Involuntary {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
}
