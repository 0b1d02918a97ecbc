package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// Flags set, change and remove what a workload may send and receive; that of its pod is the pod's.
func TestRateFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args  string
		was   agent.Bandwidth
		want  traffic.Limit
		fails string
	}{
		{"--send 10Mbit --receive 2.5Gbit", agent.Bandwidth{}, traffic.Limit{Send: 10e6, Receive: 2.5e9}, ""},
		{"--send max", agent.Bandwidth{Limit: traffic.Limit{Send: 10e6, Receive: 20e6}}, traffic.Limit{Receive: 20e6}, ""},
		{"", agent.Bandwidth{Limit: traffic.Limit{Send: 10e6}}, traffic.Limit{Send: 10e6}, ""},
		{"--receive 1Mbit", agent.Bandwidth{Limit: traffic.Limit{Send: 10e6}, Around: true}, traffic.Limit{}, "its pod says"},
	} {
		var f specFlags
		cmd := &cobra.Command{}
		f.register(cmd)
		if err := cmd.ParseFlags(strings.Fields(tc.args)); err != nil {
			t.Fatal(err)
		}
		s := agent.Spec{Bandwidth: tc.was}
		err := f.apply(cmd, &s)
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: %v", tc.args, err)
			}
			continue
		}
		if err != nil || s.Bandwidth.Limit != tc.want {
			t.Errorf("%s: %+v, %v, wants %+v", tc.args, s.Bandwidth, err, tc.want)
		}
	}
}

// What single workloads may send and receive is listed, with classes and without any.
func TestLimitsListed(t *testing.T) {
	t.Parallel()
	limits := []agent.WorkloadLimit{{Workload: "get", Send: 10e6, Receive: 2.5e9}, {Workload: "pod-a", Receive: 20e6, Around: true}}
	r := classReport{agent.ClassReport{Kinds: []agent.ClassSection{{Kind: agent.NetClass, Limits: limits}}}}
	const want = `net classes

WORKLOAD          SENDS AT MOST  RECEIVES AT MOST
get               10Mbit         2.5Gbit
the pod of pod-a  –              20Mbit
`
	if got := r.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.Kinds[0].Drops = []agent.WorkloadDrops{{Workload: "get", Packets: 1234}}
	if got := r.text(); got != want+"\nDROPPED  BY         OF\n1234     its limit  get\n" {
		t.Errorf("with drops\n%s", got)
	}
	r.Kinds[0].Classes = []agent.ClassUse{{Name: "bulk", Dropped: new(uint64(4)), Links: []agent.ClassLink{{Device: "eth0", Dropped: new(uint64(17))}}, Settings: []agent.ClassSetting{{Of: "eth0", Value: "at most 50Mbit, by fq"}}}}
	if got := r.text(); !strings.Contains(got, "eth0 at most 50Mbit, by fq") || !strings.Contains(got, "the pod of pod-a") ||
		!strings.Contains(got, "17       eth0                        class bulk\n4        what they receive together  class bulk\n1234     its limit                   get\n") {
		t.Errorf("with a class:\n%s", got)
	}
}

// What divides a device is told with what a class has of it.
func TestExplainedLink(t *testing.T) {
	t.Parallel()
	w := &agent.Workload{Grant: &place.Grant{}}
	got := explanation(w, &agent.ClassUse{Links: []agent.ClassLink{
		{Device: "eth0", Ceiling: 50e6, Priority: 4, By: traffic.EDT, Why: "eth0 has fq"},
		{Device: "eth1", Floor: 10e6, Ceiling: 50e6, Priority: 8, By: traffic.HTB, Why: "classes have floors or priorities"},
	}, Settings: []agent.ClassSetting{{Of: "received", Value: "20Mbit each from eth0"}, {Of: "received", Value: "30Mbit together from eth0"}, {Of: "eth0", Value: "x"}}}, false)
	for _, want := range []string{"through eth0  at most 50Mbit, by fq (EDT: eth0 has fq)\n", "through eth1  10Mbit to 50Mbit, priority 8 (HTB: classes have floors or priorities)\n", "received      20Mbit each from eth0, 30Mbit together from eth0\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q", got, want)
		}
	}
}

// unreported is a node of which the classes cannot be read.
type unreported struct{ node }

func (unreported) ClassReport(context.Context) (agent.ClassReport, error) {
	return agent.ClassReport{}, errors.New("no such\nluck")
}

// A workload is explained though what its class has cannot be read.
func TestExplainedWithoutLinks(t *testing.T) {
	t.Parallel()
	w := agent.Workload{Grant: &place.Grant{}, Classes: map[agent.ClassKind]string{agent.NetClass: "bulk"}}
	net := netOf(t.Context(), unreported{}, &w)
	text := explanation(&w, net, false)
	if net != nil || !strings.Contains(text, "note: what its network class has of devices cannot be read: no such") {
		t.Errorf("%v, %s", net, text)
	}
	w = agent.Workload{}
	if net := netOf(t.Context(), unreported{}, &w); net != nil || len(w.Notes) > 0 {
		t.Errorf("without a class: %v, %q", net, w.Notes)
	}
}
