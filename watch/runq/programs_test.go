package runq

import (
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
)

// spinAs keeps a CPU busy, in the root group, under a name.
func spinAs(t *testing.T, root, name string) {
	t.Helper()
	start(t, root, "", exec.Command(fakekernel.Shell(t, name), "-c", "while :; do :; done"))
}

// TestPrograms has two programs of the root group on one CPU. Each waits for the other, by
// name; one that is watched no more is the root group again.
func TestPrograms(t *testing.T) {
	root := realRoot(t)
	one, two := ProgramPath("berth-runq-one"), ProgramPath("berth-runq-two")
	p := open(t, Options{Root: root, Room: 3}, one, two, one)
	spinAs(t, root, "berth-runq-one")
	spinAs(t, root, "berth-runq-two")
	// waits of the first program, in all and behind the other and the root group
	waits := func(s *Snapshot) (ended uint64, other, rest time.Duration) {
		for _, g := range s.Groups {
			if g.Path != one {
				continue
			}
			for _, share := range g.Shares {
				id, ok := share.Culprit.Group()
				name, err := p.Name(id)
				switch {
				case !ok:
				case id == 1: // the root group
					rest = share.Wait
				case errors.Is(err, fs.ErrNotExist): // it is watched no more
				case err != nil:
					t.Fatal(err)
				case name == two:
					other = share.Wait
				}
			}
			return g.Waits, other, rest
		}
		t.Fatal("the program is not told of")
		return 0, 0, 0
	}
	if !holds(func() bool {
		ended, other, _ := waits(read(t, p))
		return ended > 0 && other > 50*time.Millisecond
	}) {
		t.Fatalf("%+v", read(t, p).Groups)
	}
	if err := p.Remove(two); err != nil {
		t.Fatal(err)
	}
	_, _, before := waits(read(t, p))
	if !holds(func() bool {
		_, _, rest := waits(read(t, p))
		return rest-before > 50*time.Millisecond
	}) {
		t.Fatalf("%+v", read(t, p).Groups)
	}
}

func TestProgramRefused(t *testing.T) {
	p := open(t, Options{Root: realRoot(t), Room: 2})
	for name, says := range map[string]string{
		"": "no name of a process", "a-name-of-16-byt": "no name of a process", "a\x00b": "no name of a process",
	} {
		if err := p.Add(ProgramPath(name)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"a/b", "\x1b[2J", "a/b"} {
		if err := p.Add(ProgramPath(name)); err != nil {
			t.Error(err)
		}
	}
	if err := p.Add(ProgramPath("c")); err == nil || !strings.Contains(err.Error(), "all there is room for") {
		t.Errorf("one too many: %v", err)
	}
	if err := p.Remove(ProgramPath("c")); err == nil {
		t.Error("one that is not watched is removed")
	}
	if err := errors.Join(p.Remove(ProgramPath("a/b")), p.Add(ProgramPath("c"))); err != nil {
		t.Error(err)
	}
}
