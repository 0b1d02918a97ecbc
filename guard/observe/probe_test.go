package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"berth.dev/berth/watch/runq"
)

// fakeProbe watches groups on paper.
type fakeProbe struct {
	watched []string
	refuses map[string]error // by path
	stale   string           // a path that has to be removed before it can be added
	armed   bool
	closed  bool
}

func (p *fakeProbe) Add(path string) error {
	if err := p.refuses[path]; err != nil {
		return fmt.Errorf("watch group %s: %w", path, err)
	}
	if path == p.stale {
		return errors.New("another group has taken its place: remove it first")
	}
	if !slices.Contains(p.watched, path) {
		p.watched = append(p.watched, path)
	}
	return nil
}

func (p *fakeProbe) Remove(path string) error {
	if p.stale == path {
		p.stale = ""
		return nil
	}
	if !slices.Contains(p.watched, path) {
		return errors.New("not watched")
	}
	p.watched = slices.DeleteFunc(p.watched, func(w string) bool { return w == path })
	return nil
}

func (p *fakeProbe) Arm() error {
	p.armed = true
	return nil
}

func (p *fakeProbe) Disarm() error {
	p.armed = false
	return nil
}

func (p *fakeProbe) Read(*runq.Snapshot) error { return nil }

func (p *fakeProbe) Close() error {
	p.armed, p.closed = false, true
	return nil
}

// A group that vanishes or is made anew as the probe is armed costs that group, not
// the probe; what else cannot be watched costs the probe.
func TestArm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		probe fakeProbe
		want  []string // watched; nil is no probe
	}{
		"all there":      {fakeProbe{}, []string{"/a", "/b", "/c"}},
		"one vanished":   {fakeProbe{refuses: map[string]error{"/b": fs.ErrNotExist}}, []string{"/a", "/c"}},
		"one made anew":  {fakeProbe{stale: "/b"}, []string{"/a", "/b", "/c"}},
		"a map is full":  {fakeProbe{refuses: map[string]error{"/b": errors.New("no space left")}}, nil},
		"all of it gone": {fakeProbe{refuses: map[string]error{"/a": fs.ErrNotExist, "/b": fs.ErrNotExist, "/c": fs.ErrNotExist}}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.probe
			o := &Observer{queue: &queue{probe: &p}}
			o.arm([]string{"a", "b", "c"})
			if c.want == nil {
				if o.noRun == nil || o.queue != nil || !p.closed {
					t.Errorf("no error %v, closed %v", o.noRun, p.closed)
				}
				return
			}
			if o.noRun != nil || !p.armed || !slices.Equal(p.watched, c.want) {
				t.Errorf("armed %v, watches %v, want %v; %v", p.armed, p.watched, c.want, o.noRun)
			}
		})
	}
}

// A group that was left out can leave the focus.
func TestDropUnwatched(t *testing.T) {
	t.Parallel()
	n, err := OpenNear(plant(t))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	n.o.queue, n.armed = &queue{probe: &fakeProbe{refuses: map[string]error{"/batch": fs.ErrNotExist}}}, true
	for _, focus := range [][]string{{"batch"}, {}} {
		if err := n.Focus(focus); err != nil || n.Probe() != nil && n.o.noRun != nil {
			t.Errorf("focus on %v: %v, %v", focus, err, n.o.noRun)
		}
	}
}
