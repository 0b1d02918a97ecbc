package kernel

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

func TestReadProcs(t *testing.T) {
	t.Parallel()
	long := "4194303\n" + strings.Repeat(" ", mostIDs-8)
	for text, want := range map[string]struct {
		pids  []int
		has   bool
		wrong string
	}{
		"":                  {},
		"\n":                {},
		"12\n7\n12\n":       {[]int{7, 12}, true, ""},
		"0\n0\n":            {nil, true, ""}, // of other PID namespaces
		"0\n7\n":            {[]int{7}, true, ""},
		"7":                 {[]int{7}, true, ""},
		"-7\n":              {nil, true, `"-7": not a process id`},
		"7 x":               {nil, true, `"x": not a process id`},
		"2147483648\n":      {nil, true, "not a process id"},
		long:                {[]int{4194303}, true, ""},
		long + "\n":         {nil, true, "longer than 33554432 bytes"},
		"\x00\x1b[2J7\n":    {nil, true, "not a process id"},
		"999999999999999\n": {nil, true, "not a process id"},
	} {
		fsys := fstest.MapFS{"g/cgroup.procs": {Data: []byte(text)}, "g/cgroup.threads": {Data: []byte("8\n7\n")}}
		shown := text[:min(len(text), 20)]
		pids, err := ReadProcs(fsys, "g")
		if !slices.Equal(pids, want.pids) || (err == nil) != (want.wrong == "") || err != nil && (!strings.Contains(err.Error(), want.wrong) || !strings.Contains(err.Error(), "/g/cgroup.procs")) {
			t.Errorf("%q: %v, %v; want %v, %q", shown, pids, err, want.pids, want.wrong)
		}
		if has, err := HasProcs(fsys, "g"); has != want.has || err != nil {
			t.Errorf("%q: has processes: %v, %v", shown, has, err)
		}
		if tids, err := ReadThreads(fsys, "g"); !slices.Equal(tids, []int{7, 8}) || err != nil {
			t.Errorf("threads: %v, %v", tids, err)
		}
		delete(fsys, "g/cgroup.threads")
		if tids, err := ReadThreads(fsys, "g"); !slices.Equal(tids, want.pids) || (err == nil) != (want.wrong == "") {
			t.Errorf("%q, without a list of threads: %v, %v", shown, tids, err)
		}
	}
	v1 := fstest.MapFS{"g/cgroup.procs": {Data: []byte("7\n")}, "g/tasks": {Data: []byte("7\n8\n")}}
	if tids, err := ReadThreads(v1, "g"); !slices.Equal(tids, []int{7, 8}) || err != nil {
		t.Errorf("threads of v1: %v, %v", tids, err)
	}
}

// refusing are files of a group of which some are refused when they are read.
type refusing struct {
	fs.FS
	errs map[string]error
}

type refusedFile struct {
	fs.File
	err error
}

func (r refusedFile) Read([]byte) (int, error) { return 0, r.err }

func (r refusing) Open(name string) (fs.File, error) {
	f, err := r.FS.Open(name)
	if refuses := r.errs[name]; err == nil && refuses != nil {
		f = refusedFile{f, &fs.PathError{Op: "read", Path: name, Err: refuses}}
	}
	return f, err
}

func TestReadProcsOfGoneAndThreaded(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{"g/cgroup.procs": {}, "g/cgroup.threads": {Data: []byte("7\n")}, "g/tasks": {}}
	gone := refusing{files, map[string]error{"g/cgroup.procs": syscall.ENODEV, "g/cgroup.threads": syscall.ENODEV, "g/tasks": syscall.ENODEV}}
	threaded := refusing{files, map[string]error{"g/cgroup.procs": syscall.EOPNOTSUPP}}
	broken := refusing{files, map[string]error{"g/cgroup.procs": io.ErrUnexpectedEOF}}
	for _, tc := range []struct {
		what string
		fsys fs.FS
		want error
		has  bool
	}{
		{"never there", fstest.MapFS{}, fs.ErrNotExist, false},
		{"removed meanwhile", gone, fs.ErrNotExist, false},
		{"threaded", threaded, ErrNotSupported, true},
		{"broken", broken, io.ErrUnexpectedEOF, false},
	} {
		if pids, err := ReadProcs(tc.fsys, "g"); !errors.Is(err, tc.want) || pids != nil {
			t.Errorf("%s: %v, %v", tc.what, pids, err)
		}
		has, err := HasProcs(tc.fsys, "g")
		if has != tc.has || tc.has != (err == nil) || err != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: has processes: %v, %v", tc.what, has, err)
		}
	}
	if tids, err := ReadThreads(gone, "g"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("threads of one removed meanwhile: %v, %v", tids, err)
	}
}

// A group of a stored tree in which somebody has put something else for the list is refused,
// not waited for.
func TestReadProcsOfNoFile(t *testing.T) {
	t.Parallel()
	for what, place := range map[string]func(name string) error{
		"device":    func(name string) error { return os.Symlink("/dev/null", name) },
		"directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"pipe":      func(name string) error { return syscall.Mkfifo(name, 0o600) },
	} {
		dir := t.TempDir()
		if err := place(dir + "/cgroup.procs"); err != nil {
			t.Fatal(err)
		}
		const want = "read cgroup.procs: not a regular file" // not /cgroup.procs: what is above is not known
		if pids, err := ReadProcs(os.DirFS(dir), "."); pids != nil || err == nil || err.Error() != want {
			t.Errorf("%s: %v, %v", what, pids, err)
		}
		if has, err := HasProcs(os.DirFS(dir), "."); has || err == nil || err.Error() != want {
			t.Errorf("%s: has processes: %v, %v", what, has, err)
		}
	}
}

func FuzzParsePIDs(f *testing.F) {
	f.Add([]byte("12\n0\n7\n"))
	f.Add([]byte("-1 2147483648"))
	f.Fuzz(func(t *testing.T, text []byte) {
		pids, err := ParsePIDs(text)
		if err != nil && pids != nil {
			t.Errorf("%v and %v", pids, err)
		}
		for i, pid := range pids {
			if pid <= 0 || i > 0 && pid <= pids[i-1] {
				t.Errorf("%q: %v", text, pids)
			}
		}
		if more := len(bytes.Fields(text)); len(pids) > more {
			t.Errorf("%d of %d words", len(pids), more)
		}
	})
}
