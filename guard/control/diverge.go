package control

import (
	"path"
	"strings"

	"berth.dev/berth/kernel"
)

// Diverge returns the two sibling groups where victim and suspect part in the
// tree: of "kubepods/a/x" and "kubepods/b/y" it is "kubepods/a" and "kubepods/b".
// The scheduler compares two tasks by the weights and cpu.idle of these two,
// whatever is set below them (find_matching_se in kernel/sched/fair.c); that is
// so for the cpu controller of cgroup v1 and of v2. False if one is the other, or
// lies in it.
func Diverge(victim, suspect string) (ofVictim, ofSuspect string, ok bool) {
	if victim == "" || suspect == "" || kernel.Within(victim, suspect) || kernel.Within(suspect, victim) {
		return "", "", false
	}
	v, s, i := strings.Split(victim, "/"), strings.Split(suspect, "/"), 0
	for v[i] == s[i] {
		i++
	}
	return strings.Join(v[:i+1], "/"), strings.Join(s[:i+1], "/"), true
}

// below reports whether a glob may name groups that lie in the group.
func below(glob, group string) bool {
	elements := strings.Count(group, "/") + 1
	parts := strings.Split(glob, "/")
	if len(parts) <= elements {
		return false
	}
	ok, _ := path.Match(strings.Join(parts[:elements], "/"), group)
	return ok
}
