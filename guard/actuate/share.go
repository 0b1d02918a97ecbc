package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/resctrl"
)

// Shares of caches and memory bandwidth are those of groups of resctrl, to which threads
// belong whatever control group they are in. A control group whose share is cut gets one of its
// own for that time, with the lines of the group that its threads were in, so that nobody else's
// values change: neither those of a class that others have as well, nor those of the default group.
// Where no CLOSID is left for one, a class that nobody else has is narrowed itself.

// division is a control group whose share is cut.
type division struct {
	name   string // of its group of resctrl
	from   *resctrl.Group
	shares map[detect.Remedy]control.Share
	// inPlace says that it is from itself, as it was, whose lines are narrowed.
	inPlace bool
}

// now is the group that it came from as it is by now, or the default group if that is gone.
func (d *division) now(t *resctrl.Tree) *resctrl.Group {
	if d.inPlace {
		return d.from
	}
	if g := t.Group(d.from.Name); g != nil {
		return g
	}
	return t.Group("")
}

// lines are those of the group it came from, within all shares but those left out.
func (d *division) lines(t *resctrl.Tree, resource func(*resctrl.Resource) bool) (all resctrl.Schemata) {
	for i := range d.from.Schemata {
		l := &d.from.Schemata[i]
		r := t.Find(l.Resource)
		if r == nil || !resource(r) {
			continue
		}
		var most uint64
		for remedy, s := range d.shares {
			switch {
			case !divides(remedy)(r):
			case remedy == detect.CacheWays:
				most = uint64(s.Ways)
			case remedy == detect.BandwidthCap:
				most = uint64(s.Bandwidth)
			}
		}
		all = append(all, r.Narrow(l, most))
	}
	return all
}

// divides says which resources a remedy is about: last-level caches, in parts for code and data
// where these are apart, or the bandwidth behind them.
func divides(remedy detect.Remedy) func(*resctrl.Resource) bool {
	return func(r *resctrl.Resource) bool {
		if remedy == detect.BandwidthCap {
			return r.Name == "MB"
		}
		return r.Cache() && r.Level() == "L3"
	}
}

// divided reports whether a step made a group of resctrl whose name begins so, or one within it.
func divided(s kernel.Step, prefix string) bool {
	return s.Op == kernel.Mkdir && slices.ContainsFunc(strings.Split(s.Path, "/"), func(name string) bool { return strings.HasPrefix(name, prefix) })
}

// anyResource is of the lines that a new group is given: it has all that no group has alone.
func anyResource(*resctrl.Resource) bool { return true }

// division returns that of a group, with a share in place of that of the same remedy.
func (h *Host) division(t *resctrl.Tree, a control.Action) (*division, error) {
	if err := valid(a.Group); err != nil {
		return nil, err
	}
	d := &division{name: resctrl.GuardGroup(a.Group), shares: map[detect.Remedy]control.Share{a.Remedy: a.Share}}
	if was := h.divided[a.Group]; was != nil {
		d.name, d.inPlace, d.from = was.name, was.inPlace, was.now(t)
		for remedy, s := range was.shares {
			if remedy != a.Remedy {
				d.shares[remedy] = s
			}
		}
		return d, nil
	}
	threads, err := h.threads(a.Group)
	if err != nil {
		return nil, err
	}
	if len(threads) == 0 {
		return nil, fs.ErrNotExist
	}
	in, err := t.Members(h.root.FS())
	if err != nil {
		return nil, err
	}
	if d.from, err = t.Origin(in, threads); err != nil {
		return nil, err
	}
	if d.from.Mode == "exclusive" {
		return nil, &kernel.NotSupportedError{Feature: "less cache or bandwidth", Reason: fmt.Sprintf("class %s has its ways alone: they are nobody else's", d.from.Class())}
	}
	no := &kernel.NotSupportedError{Feature: "less cache or bandwidth", Remedy: "define fewer cache classes, or remove groups of resctrl that nobody needs"}
	switch n := t.CLOSIDs(); {
	case len(t.Groups) >= n:
		no.Reason = fmt.Sprintf("the group needs a class of its own, and all %d CLOSIDs of the CPU are in use", n)
	case len(t.Groups) == n-1 && !h.givesWay:
		no.Reason = fmt.Sprintf("the group needs a class of its own, and the last free one of %d CLOSIDs is kept for a cache class", n)
		no.Remedy = "let the guard of berth agent act, whose groups give way to classes, or remove groups of resctrl that nobody needs"
	default:
		return d, nil
	}
	if d.from.Own() && alone(in, d.from, threads) {
		d.name, d.inPlace = d.from.Name, true
		return d, nil
	}
	return nil, no
}

// alone reports whether no other threads than these are in a group that allocates; in says where
// all are.
func alone(in map[int]string, g *resctrl.Group, threads []int) bool {
	for tid, name := range in {
		if resctrl.Around(name) == g.Name && !slices.Contains(threads, tid) {
			return false
		}
	}
	return true
}

// threads are those of a group and of the groups below it.
func (h *Host) threads(group string) (tids []int, err error) {
	for _, dir := range h.base.Child(group).Dirs() {
		if tids, err = cgroup.Threads(h.root.FS(), dir); err != nil || len(tids) > 0 {
			return tids, err // any tree has all of them
		}
	}
	return nil, nil
}

// planShare is what applies an action to caches or bandwidth, beside the threads that move.
func (h *Host) planShare(a control.Action) (t *resctrl.Tree, d *division, plan kernel.Plan, err error) {
	if t, err = resctrl.Read(h.root.FS()); err != nil {
		return nil, nil, nil, err
	}
	if d, err = h.division(t, a); err != nil {
		return nil, nil, nil, err
	}
	if t.Group(d.name) == nil {
		plan = t.Alone(d.name, d.from, d.lines(t, anyResource))
	} else {
		plan = t.Lines(d.name, d.lines(t, divides(a.Remedy)))
	}
	for i := range plan {
		plan[i].Why = fmt.Sprintf("%v for %s", a.Remedy, a.Victim)
	}
	return t, d, plan, nil
}

func (h *Host) previewShare(a control.Action) ([]control.Change, error) {
	_, d, plan, err := h.planShare(a)
	if err != nil {
		return nil, h.failed("plan", a, err)
	}
	return h.shareChanges(d, plan)
}

// shareChanges are the steps that would change something. What a new group would have had is
// what its threads have.
func (h *Host) shareChanges(d *division, plan kernel.Plan) (changes []control.Change, err error) {
	made := false
	for _, s := range plan {
		c := control.Change{Path: "/" + s.Path, To: s.Value}
		switch {
		case s.Op == kernel.Mkdir:
			made, c.To = true, "made"
		case made:
			i := slices.IndexFunc(d.from.Schemata, func(l resctrl.Line) bool { return kernel.SameResource(l.String(), s.Value) })
			if c.From = d.from.Schemata[i].String(); c.From == c.To {
				continue
			}
		default:
			same := false
			if c.From, same, err = h.root.Shows(s); err != nil {
				return nil, err
			}
			if same {
				continue
			}
		}
		changes = append(changes, c)
	}
	return changes, nil
}

func (h *Host) applyShare(a control.Action) ([]control.Change, error) {
	t, d, plan, err := h.planShare(a)
	if err != nil {
		return nil, h.failed("plan", a, err)
	}
	changes, err := h.shareChanges(d, plan)
	if err != nil {
		return nil, h.failed("apply", a, err)
	}
	undo, err := kernel.Apply(h.root, plan, h.log)
	if err != nil {
		return nil, h.failed("apply", a, err)
	}
	if !d.inPlace {
		in, err := t.Members(h.root.FS())
		if err == nil {
			err = h.takeAlong(t, in, a.Group, d)
		}
		if err != nil {
			return nil, h.failed("apply", a, errors.Join(err, undo()))
		}
	}
	h.divided[a.Group] = d
	return changes, nil
}

// takeAlong moves the threads of a group that are not in its group of resctrl yet, but for those
// that another program monitors.
func (h *Host) takeAlong(t *resctrl.Tree, in map[int]string, group string, d *division) error {
	_, _, err := resctrl.Follow(h.root, t, d.name, func() ([]int, error) {
		tids, err := h.threads(group)
		return slices.DeleteFunc(tids, func(tid int) bool { return resctrl.Foreign(in[tid]) }), err
	})
	return err
}

// Follow keeps what is active true to what others do. Threads that have come to groups whose share is
// cut are taken along, as only new threads of its threads are there already; those that have
// left go back; and where the class that they came from is another one by now, the share is of that.
// Processes that were in no group and are in one by now get back what they had.
func (h *Host) Follow() error {
	defer h.enter()()
	left := h.leaveJoined()
	if len(h.divided) == 0 {
		return left
	}
	t, err := resctrl.Read(h.root.FS())
	if err != nil {
		return fmt.Errorf("follow threads: %w", err)
	}
	in, err := t.Members(h.root.FS()) // before the threads of groups: new ones are no strays
	if err != nil {
		return fmt.Errorf("follow threads: %w", err)
	}
	errs := []error{left}
	for group, d := range h.divided {
		if t.Group(d.name) == nil {
			continue // somebody has removed it: the next look at what is active finds out
		}
		if d.inPlace {
			errs = append(errs, h.shared(in, group, d))
			continue
		}
		errs = append(errs, h.refit(t, d), h.strays(t, in, group, d), h.takeAlong(t, in, group, d))
	}
	return errors.Join(errs...)
}

// shared gives a class that was narrowed in place what it had once others have it, too: to take the
// action back changes nothing then.
func (h *Host) shared(in map[int]string, group string, d *division) error {
	threads, err := h.threads(group)
	if err != nil || alone(in, d.from, threads) {
		return err
	}
	if _, err = h.undo(d.made); err == nil {
		delete(h.divided, group)
	}
	return err
}

// made reports whether a step is of the division.
func (d *division) made(s kernel.Step) bool {
	if d.inPlace {
		return s.Format == kernel.Schema && path.Base(path.Dir(s.Path)) == d.name
	}
	return divided(s, d.name)
}

// refit writes the lines that a share comes to by now.
func (h *Host) refit(t *resctrl.Tree, d *division) error {
	d.from = d.now(t)
	var plan kernel.Plan
	for _, s := range t.Lines(d.name, d.lines(t, anyResource)) {
		_, same, err := h.root.Shows(s)
		if err != nil {
			return err
		}
		if !same {
			s.Why = "another layout of classes"
			plan = append(plan, s)
		}
	}
	_, err := kernel.Apply(h.root, plan, h.log)
	return err
}

// strays sends threads back that are in the group of resctrl and have left the control group.
func (h *Host) strays(t *resctrl.Tree, in map[int]string, group string, d *division) error {
	threads, err := h.threads(group)
	if err != nil {
		return err
	}
	own := make(map[int]bool, len(threads))
	for _, tid := range threads {
		own[tid] = true
	}
	var strays []int
	for tid, name := range in {
		if kernel.Within(name, d.name) && !own[tid] {
			strays = append(strays, tid)
		}
	}
	slices.Sort(strays)
	_, err = resctrl.Assign(h.root, t.Dir, d.from.Name, strays)
	return err
}

// revertShare takes a share back: by the lines without it or, with the last, by removing the
// group.
func (h *Host) revertShare(a control.Action) (changes []control.Change, err error) {
	d := h.divided[a.Group]
	if d == nil {
		return nil, nil
	}
	without := *d
	without.shares = map[detect.Remedy]control.Share{}
	for remedy, s := range d.shares {
		if remedy != a.Remedy {
			without.shares[remedy] = s
		}
	}
	if len(without.shares) == 0 {
		items, err := h.undo(d.made)
		if err != nil {
			return nil, h.failed("revert", a, err)
		}
		delete(h.divided, a.Group)
		for _, item := range items {
			switch {
			case item.Outcome != kernel.Restored:
			case d.inPlace:
				changes = append(changes, control.Change{Path: "/" + item.Step.Path, From: item.Step.Value, To: item.Original})
			case path.Base(item.Step.Path) == d.name:
				changes = append(changes, control.Change{Path: "/" + item.Step.Path, From: a.Share.String(), To: "removed"})
			}
		}
		return changes, nil
	}
	t, err := resctrl.Read(h.root.FS())
	if err != nil {
		return nil, h.failed("revert", a, err)
	}
	without.from = d.now(t)
	plan := t.Lines(d.name, without.lines(t, divides(a.Remedy)))
	if changes, err = h.shareChanges(&without, plan); err == nil {
		_, err = kernel.Apply(h.root, plan, h.log)
	}
	if err != nil {
		return nil, h.failed("revert", a, err)
	}
	h.divided[a.Group] = &without
	return changes, nil
}

// availableShare says why no group of this host can have a share cut; nil if one can.
func (h *Host) availableShare(remedy detect.Remedy) error {
	t, err := resctrl.Read(h.root.FS())
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(t.Resources, func(r resctrl.Resource) bool { return divides(remedy)(&r) }); i < 0 {
		what := "last-level caches"
		if remedy == detect.BandwidthCap {
			what = "memory bandwidth"
		}
		return &kernel.NotSupportedError{Feature: remedy.String(), Reason: "resctrl does not divide " + what + " here", Remedy: "see 'berth doctor'"}
	}
	return nil
}

// Cache returns what a group has of caches and memory bandwidth without the active actions.
func (h *Host) Cache(group string) (c control.Cache) {
	defer h.enter()()
	t, err := resctrl.Read(h.root.FS())
	if err == nil {
		var d *division
		if d, err = h.division(t, control.Action{Group: group}); err == nil {
			c = cacheOf(t, d.from)
		}
	}
	if err != nil {
		c.Why = err.Error()
	}
	return c
}

func cacheOf(t *resctrl.Tree, g *resctrl.Group) (c control.Cache) {
	for i := range t.Resources {
		r := &t.Resources[i]
		l := g.Schemata.Line(r.Name)
		if l == nil {
			continue
		}
		for _, v := range l.Values {
			switch {
			case divides(detect.CacheWays)(r):
				c.Ways, c.Of, c.LeastWays = max(c.Ways, bits.OnesCount64(v.N)), r.Ways(), r.MinBits
			case divides(detect.BandwidthCap)(r):
				c.Bandwidth, c.LeastBandwidth, c.Step, c.Unit = max(c.Bandwidth, int64(v.N)), int64(r.Min), int64(r.Step), r.Unit.String()
				if amount, unit := r.Amount(1); unit != "ratio" {
					c.Bytes = amount
				}
			}
		}
	}
	return c
}
