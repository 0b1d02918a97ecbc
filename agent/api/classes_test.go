package api

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel/resctrl"
)

func (b *fake) ClassReport(context.Context) (agent.ClassReport, error) {
	tree := &resctrl.Tree{Dir: "sys/fs/resctrl", Resources: []resctrl.Resource{{Name: "L3", CLOSIDs: 16, Domains: []int{0}, Mask: 0x7ff, MinBits: 1}}}
	return agent.ClassReport{Kinds: []agent.ClassSection{{
		Kind: agent.CacheClass, Supplies: []agent.ClassSupply{{Name: "CLOSIDs", Total: 16, Left: 14}}, Resctrl: tree,
		Classes: []agent.ClassUse{{
			Name: "gold", InForce: true, Workloads: []string{"api"}, Settings: []agent.ClassSetting{{Of: "L3", Value: "4 of 11 ways"}},
			Schemata: resctrl.Schemata{{Resource: "L3", Values: []resctrl.Value{{Domain: 0, N: 0xf}}}},
		}},
	}}}, b.fail
}

// What classes there are comes over the socket as it was told.
func TestClassReport(t *testing.T) {
	t.Parallel()
	b := newFake(t)
	c := dial(t, serve(t, b, NewHistory(8, 0)))
	want, _ := b.ClassReport(t.Context())
	got, err := c.ClassReport(t.Context())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
