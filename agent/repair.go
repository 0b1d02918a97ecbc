package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
)

// Repair is a value that someone else had changed.
type Repair struct {
	Path   string `json:"path"`
	Found  string `json:"found"`
	Wanted string `json:"wanted"`
	// Count is how often within Options.Window, this time included.
	Count int `json:"count"`
	// Why is what the value is for, "" if the path says it.
	Why string `json:"why,omitempty"`
	// Yielded is true if it was left as found, now and from now on.
	Yielded bool `json:"yielded,omitempty"`
}

// Reconcile compares every value of the given workloads, or of all and of the
// groups to confine if none is given, with what the kernel shows and repairs what
// someone else has changed. A value that had to be repaired too often is yielded:
// this Node leaves it alone from then on. Nothing is repaired beside a record that cannot be
// read (CorruptError).
func (n *Node) Reconcile(ctx context.Context, ids ...string) (repairs []Repair, err error) {
	err = n.change(ctx, func(t *transaction) error {
		asks := len(ids) == 0 && n.refused.asking.Due(n.refused.now())
		among := ids
		if len(ids) == 0 {
			among = t.ids()
		}
		if err := t.reap(among); err != nil {
			return err
		}
		if t.corrupt() != nil {
			return nil // it is not known from which workload a repair would take what
		}
		if profiles, text, changed := n.rescheduled(); changed {
			if err := t.converge(); err != nil {
				return err
			}
			n.inForce(profiles, text)
		}
		plan, drifted, err := t.drifted(ids)
		if err == nil && !drifted {
			all := t.everything()
			if len(ids) > 0 {
				all = t.to(t.snapshot, ids...)
			}
			_, err = n.followClasses(all)
		}
		if err == nil && drifted {
			all := n.judge(plan)
			n.unwritten = map[string]bool{}
			err = t.converge()
			for _, j := range all {
				if !n.unwritten[j.setting] && !isAway(err) && !n.waits(j.Path, false) {
					repairs = joined(repairs, j.Repair)
				}
			}
			for _, j := range all { // of the others the kernel insists, and nobody else, or systemd could not be asked
				if !slices.ContainsFunc(repairs, func(r Repair) bool { return r.Path == j.Path }) {
					n.drift.Forget(j.Path)
				}
			}
			n.unwritten = nil
		}
		repairs, n.changedPriorities = append(repairs, n.changedPriorities...), nil
		if asks && err == nil && n.refused.asking.Due(n.refused.now()) {
			n.refused.asking.Done() // nothing is to be asked of systemd: whether it can be, the next that is tells
		}
		return err
	})
	if err == nil {
		for _, r := range repairs {
			kind := Repaired
			if r.Yielded {
				kind = Yielded
			}
			text := fmt.Sprintf("found %q, wants %q, time %d", r.Found, r.Wanted, r.Count)
			if r.Why != "" {
				text += "; " + r.Why
			}
			n.tell(kind, "", r.Path, text)
		}
	}
	return repairs, err
}

// drifted is what it takes to drive the kernel to the records, as far as they are
// about some workloads; none is all, and everything else.
func (t *transaction) drifted(ids []string) (plan kernel.Plan, drifted bool, err error) {
	if _, ok := t.n.enforcer.(Planner); !ok {
		return nil, true, nil // it sees for itself
	}
	if len(ids) == 0 {
		return t.n.writes(t.everything())
	}
	there := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return t.records[id] == nil })
	return t.n.writes(t.to(t.snapshot, there...))
}

// judged is a Repair of one setting of a file.
type judged struct {
	Repair
	setting string
}

// judge counts a repair of every file that a plan leaves with another value than it
// has now: some are written twice, first wider and then as they were.
func (n *Node) judge(plan kernel.Plan) (all []judged) {
	for i, s := range plan {
		if s.Op != kernel.Write || s.Keep || slices.ContainsFunc(plan[i+1:], func(later kernel.Step) bool { return later.Op == kernel.Write && setting(later) == setting(s) }) {
			continue
		}
		found, same, err := n.root.Shows(s)
		if err != nil || same {
			continue // in a group that is made anew, or as it is to be
		}
		r := Repair{Path: s.Path, Found: found, Wanted: s.Value, Why: because(s)}
		if i := slices.IndexFunc(all, func(j judged) bool { return j.Path == s.Path }); i >= 0 {
			r.Count, r.Yielded = all[i].Count, all[i].Yielded
		} else {
			r.Count, r.Yielded = n.foundChanged(s.Path)
		}
		all = append(all, judged{r, setting(s)})
	}
	return all
}

// joined adds a repair to others: one of a file that has one becomes part of that.
func joined(repairs []Repair, r Repair) []Repair {
	if i := slices.IndexFunc(repairs, func(other Repair) bool { return other.Path == r.Path }); i >= 0 {
		repairs[i].Wanted = r.Wanted
		return repairs
	}
	return append(repairs, r)
}

// because is why a step that is no part of placing is taken; the Why of those is the
// workload.
func because(s kernel.Step) string {
	if s.Format == kernel.List {
		return ""
	}
	return s.Why
}

// setting names what a step writes: a file or, where each line has a key, a line of
// it.
func setting(s kernel.Step) string {
	if s.Format != kernel.Keyed {
		return s.Path
	}
	key, _, _ := strings.Cut(s.Value, " ")
	return s.Path + " " + key
}

// foundChanged counts that somebody else has changed a file, and reports whether it is
// theirs from now on.
func (n *Node) foundChanged(path string) (count int, yielded bool) {
	return n.drift.Found(path, n.sinceOpened())
}

func (n *Node) sinceOpened() desired.Instant { return desired.Instant(n.opt.Now().Sub(n.opened)) }

// yieldedUnder returns the files in some directories that are somebody else's, sorted.
func (n *Node) yieldedUnder(dirs []string) []string {
	var paths []string
	for path := range n.drift.AllYielded {
		if slices.ContainsFunc(dirs, func(dir string) bool { return kernel.Within(path, dir) }) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}
