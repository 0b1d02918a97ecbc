package cli

import (
	"regexp"
	"strings"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/place"
)

// Where each value comes from is said, a line each; other annotations of a workload are nobody's to read, and
// nothing in them acts on a terminal.
func TestExplainedSources(t *testing.T) {
	t.Parallel()
	w := &agent.Workload{Grant: &place.Grant{}, Spec: agent.Spec{Annotations: map[string]string{
		agent.SourcePrefix + "nodes": "annotation topologyhints.resource-policy.nri.io: 1 of its devices\x1b[31m and mounts",
		agent.SourcePrefix + "class": "annotation berth.dev/class.postgres",
		"container":                  "4711",
	}}}
	got := explanation(w, nil, false)
	if !regexp.MustCompile(`(?m)^class from +annotation berth\.dev/class\.postgres\nnodes from +annotation topologyhints\.resource-policy\.nri\.io: 1 of its devices`).MatchString(got) ||
		strings.Contains(got, "4711") || strings.ContainsRune(got, '\x1b') {
		t.Errorf("%q", got)
	}
}
