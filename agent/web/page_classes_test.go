package web

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
)

// Every kind of class has a title on the page.
func TestEveryKindHasATitle(t *testing.T) {
	t.Parallel()
	script, err := assets.ReadFile("page.js")
	if err != nil {
		t.Fatal(err)
	}
	titles := regexp.MustCompile(`const titles = \{.*\};`).Find(script)
	for _, kind := range agent.ClassKinds() {
		if !regexp.MustCompile(fmt.Sprintf(`\b%s: "`, kind)).Match(titles) {
			t.Errorf("no title of kind %s: %s", kind, titles)
		}
	}
}

// The page tells each kind that the host has, in words.
func TestClassesInWords(t *testing.T) {
	t.Parallel()
	p := newFake(t, "1s2c", 1)
	p.classes = agent.ClassReport{Kinds: []agent.ClassSection{
		{Kind: "io", Reason: "no controller"},
		{
			Kind: agent.CacheClass, Supplies: []agent.ClassSupply{{Name: "CLOSIDs", Total: 16, Left: 12}, {Name: "RMIDs", Total: 176, Left: 170}},
			Classes: []agent.ClassUse{
				{Name: "DEFAULT", InForce: true, Tasks: 7, Settings: []agent.ClassSetting{{Of: "L3", Value: "5 of 11 ways"}, {Of: "MB", Value: "no limit"}}},
				{Name: "gold", Workloads: []string{"api", hostile}, Settings: []agent.ClassSetting{{Of: "L3", Value: "4 of 11 ways"}}},
				{Name: "slow"}, {Name: "pod-a", Foreign: true, Tasks: 3, Settings: []agent.ClassSetting{{Of: "L3", Value: "1 of 11 ways"}}},
			},
			Notes: []string{"3 groups are counted"},
		},
	}}
	want := []Classes{{
		Kind: "cache", About: "12 of 16 CLOSIDs left, 170 of 176 RMIDs left",
		Lines: []string{
			"DEFAULT: L3 5 of 11 ways, MB no limit (7 threads)", "gold: L3 4 of 11 ways (api, " + hostile + ")", "slow:  (nobody has it)",
			"pod-a: L3 1 of 11 ways (another program's)", "3 groups are counted",
		},
	}}
	if diff := cmp.Diff(want, statusFrom(t, p.server(), "/status.json").Classes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p.classes = agent.ClassReport{}
	if got := statusFrom(t, p.server(), "/status.json").Classes; got == nil || len(got) > 0 {
		t.Errorf("without any: %v", got)
	}
}
