package daemon

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
)

const header = "apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"

// anyConfig is a configuration of a policy, CPUs and workloads by chance.
func anyConfig(rng *rand.Rand) string {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	var b strings.Builder
	fmt.Fprintf(&b, "policy: {name: %s}\n", pick("berth", "berth", "balloons", "topology-aware", "kubelet", "koordinator"))
	b.WriteString(pick("", "reserved: '0'\n", "floor: 0-1\n", "allowed: 0-5\n", "noFloor: true\n", "reserved: 0-3\n"))
	b.WriteString(pick("", "confine: [/other/*]\n", "protected: [/a2]\n"))
	b.WriteString("workloads:\n")
	for _, name := range []string{"a", "b", "c"} {
		if rng.IntN(5) == 0 {
			continue
		}
		class := pick("LSE", "LSR", "LS", "BE")
		fmt.Fprintf(&b, "- {name: %s, match: {cgroup: /%s*}, class: %s", name, name, class)
		if class == "LSE" || class == "LSR" || rng.IntN(2) == 0 {
			fmt.Fprintf(&b, ", cpus: %d", 1+rng.IntN(3))
		}
		b.WriteString(pick("", ", limits: {weight: 200}", ", limits: {quota: 500m}"))
		b.WriteString("}\n")
	}
	return b.String()
}

// What config preview says of any configuration, beside any workloads, is what apply does,
// to the workloads and to the kernel; the preview itself changes nothing.
func TestPreviewIsWhatApplyDoes(t *testing.T) {
	t.Parallel()
	for seed := range 12 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(17, uint64(seed)))
			h := newHost(t, anyConfig(rng))
			for range 1 + rng.IntN(6) {
				name := fmt.Sprintf("%c%d", 'a'+rng.IntN(3), 1+rng.IntN(3))
				if _, err := os.Stat(filepath.Join(h.dir, cpusets, name)); err != nil {
					h.mkdir(name)
				}
			}
			r := h.run()
			if rng.IntN(2) == 0 {
				_, _ = r.Place(t.Context(), agent.Spec{Request: request("byhand")})
			}
			for step := range 4 {
				p := api.Proposal{Text: header + anyConfig(rng), Name: "proposed", Replace: rng.IntN(3) == 0, Losses: true}
				r.settled()
				h.applied(r, fmt.Sprintf("step %d", step), p)
			}
		})
	}
}

// A preview that is asked for before the agent knows all the groups that were there at its
// start waits until it does.
func TestPreviewKnowsAllGroups(t *testing.T) {
	t.Parallel()
	const all = "workloads: [{name: a, match: {cgroup: /a*}, class: LS"
	h := newHost(t, all+"}]\n")
	const groups = 100
	for i := range groups {
		h.mkdir(fmt.Sprint("a", i))
	}
	got, err := h.run().PreviewConfig(t.Context(), api.Proposal{Text: header + all + ", limits: {weight: 200}}]\n"})
	if err != nil || len(got.Effects) != groups {
		t.Errorf("%d effects, want %d; %v", len(got.Effects), groups, err)
	}
}

// applied previews and applies a proposal, and compares the two with each other and with
// the kernel.
func (h *host) applied(r *running, name string, p api.Proposal) api.Revision {
	h.t.Helper()
	ctx := h.t.Context()
	before, files := r.holdings(), tree(h.t, h.k)
	want, err := r.PreviewConfig(ctx, p)
	if err != nil {
		h.t.Fatalf("%s: preview of\n%s: %v", name, p.Text, err)
	}
	if diff := cmp.Diff(files, tree(h.t, h.k)); diff != "" {
		h.t.Errorf("%s: the preview changed (-before +after):\n%s", name, diff)
	}
	p.Digest = want.Digest
	got, err := r.ApplyConfig(ctx, p)
	if err != nil {
		p.Digest = ""
		again, previewErr := r.PreviewConfig(ctx, p)
		h.t.Fatalf("%s: apply of\n%s: %v; previewed again: %v\n%s", name, p.Text, err, previewErr, cmp.Diff(plain(h.t, want), plain(h.t, again)))
	}
	bare := func(r api.Revision) string { r.Version, r.Writes = 0, 0; return plain(h.t, r) }
	if diff := cmp.Diff(bare(want), bare(got)); diff != "" {
		h.t.Errorf("%s (-previewed +happened):\n%s", name, diff)
	}
	// Independently of what it says: who has what, and what the kernel has.
	expected, unchanged := maps.Clone(before), len(before)
	for _, e := range want.Effects {
		was := ""
		if e.Was != nil {
			was = plain(h.t, e.Was)
			unchanged--
		}
		if diff := cmp.Diff(before[e.ID], was); diff != "" {
			h.t.Errorf("%s: %s before (-is +previewed):\n%s", name, e.ID, diff)
		}
		delete(expected, e.ID)
		if e.Is != nil {
			expected[e.ID] = plain(h.t, e.Is)
		}
		if short := e.Kind == agent.EffectLost || e.Kind == agent.EffectRefused; short != (e.Reason != "") {
			h.t.Errorf("%s: %s: %s because of %q", name, e.ID, e.Kind, e.Reason)
		}
	}
	if diff := cmp.Diff(expected, r.holdings()); diff != "" {
		h.t.Errorf("%s: workloads after\n%s (-previewed +are):\n%s", name, p.Text, diff)
	}
	if want.Unchanged != unchanged {
		h.t.Errorf("%s: %d previewed as unchanged, %d are", name, want.Unchanged, unchanged)
	}
	// What released workloads get back is no write of the plan.
	restores := slices.ContainsFunc(want.Effects, func(e agent.Effect) bool { return e.Was != nil && e.Is == nil })
	if wrote := cmp.Diff(files, tree(h.t, h.k)); wrote != "" && want.Writes == 0 && !restores {
		h.t.Errorf("%s: no value was previewed to be written, and some were:\n%s", name, wrote)
	}
	all, err := r.List(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range all {
		w := &all[i]
		if got := h.read(cpusets + w.Group + "/cpuset.cpus"); got != w.CPUs.String() {
			h.t.Errorf("%s: the kernel has CPUs %s for %s, the record %s", name, got, w.ID(), w.CPUs)
		}
		if got, weight := h.read(cpuDir+w.Group+"/cpu.shares"), w.Spec.Limits.Weight; weight > 0 && got != strconv.Itoa(1024*weight/100) {
			h.t.Errorf("%s: the kernel has shares %s for %s, whose weight is %d", name, got, w.ID(), weight)
		}
	}
	return got
}

// holdings are what all workloads have, as text.
func (r *running) holdings() map[string]string {
	all, err := r.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	has := map[string]string{}
	for i := range all {
		w := &all[i]
		h := agent.Holding{Class: w.Spec.Request.Class, CPUs: w.CPUs, Mems: w.Mems, Limits: w.Limits}
		if w.Grant != nil {
			h.Own = w.Grant.Own
		}
		has[w.ID()] = plain(r.t, h)
	}
	return has
}

// cpus are those of all workloads.
func (r *running) cpus() map[string]string {
	all, err := r.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	cpus := map[string]string{}
	for i := range all {
		cpus[all[i].ID()] = all[i].CPUs.String()
	}
	return cpus
}

// settled waits until groups that came are placed or refused.
func (r *running) settled() {
	byHand := 0
	if _, placed := r.cpus()["byhand"]; placed {
		byHand = 1
	}
	r.until(func(a api.About) bool {
		c, err := r.Config(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		want := 0
		for _, dir := range r.groups() {
			if _, ok := c.Config.Match(config.Candidate{Path: "/" + dir}); ok {
				want++
			}
		}
		refused := 0
		for _, w := range a.Waiting {
			if _, held := r.cpus()[w.ID]; !held {
				refused++
			}
		}
		return len(r.cpus())+refused == want+byHand
	})
}

// groups are those of the test.
func (r *running) groups() (names []string) {
	entries, err := os.ReadDir(filepath.Join(r.h.dir, cpusets))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && len(e.Name()) == 2 {
			names = append(names, e.Name())
		}
	}
	return names
}

const two = `workloads:
- {name: a, match: {cgroup: /a*}, class: LSR, cpus: 2}
- {name: b, match: {cgroup: /b*}, class: LSR, cpus: 2}
`

// A configuration that is applied is in the agent's file and in the history, with the
// user whom the kernel names; rollback applies the one before.
func TestApplyHistoryRollback(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	h.mkdir("b1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	ctx := t.Context()
	h.applied(r, "two", api.Proposal{Text: header + two})
	r.await(api.Reloaded, "")
	if text, err := os.ReadFile(h.file); err != nil || string(text) != header+two {
		t.Errorf("the file has %q, %v", text, err)
	}
	if got, err := r.ApplyConfig(ctx, api.Proposal{Text: header + two}); err != nil || got.Version != 0 {
		t.Errorf("applied once more it is version %d, %v", got.Version, err)
	}
	h.applied(r, "rollback", api.Proposal{Version: 1})
	all, err := r.Versions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, v := range all {
		if v.UID != os.Geteuid() || v.Text != "" || v.Since.IsZero() || v.How != "start" && v.PID != os.Getpid() {
			t.Errorf("version %d: %+v", v.Number, v)
		}
		told = append(told, fmt.Sprint(v.Number, " ", v.How, " ", v.Of, " ", v.InForce, " ", strings.Join(v.Changes, "; ")))
	}
	want := []string{
		"3 rollback 1 true workload a limits: added: weight 200; workload b: removed: class LSR, cpus 2, match (cgroup /b*)",
		"2 apply 0 false workload a limits: removed: weight 200; workload b: added: class LSR, cpus 2, match (cgroup /b*)",
		"1 start 0 false workload a: added: class LSR, cpus 2, limits (weight 200), match (cgroup /a*)",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if v, err := r.Version(ctx, 2); err != nil || v.Text != header+two {
		t.Errorf("version 2: %+v, %v", v, err)
	}

	// It outlives the agent, and keeps ten.
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = h.run()
	for i := range 12 {
		if _, err := r.ApplyConfig(ctx, api.Proposal{Text: header + fmt.Sprintf("agent: {yieldAfter: %d}\n", 4+i)}); err != nil {
			t.Fatal(err)
		}
	}
	if all, err = r.Versions(ctx); err != nil || len(all) != mostVersions || all[0].Number != 15 || all[9].Number != 6 {
		t.Errorf("%d versions are kept, %v", len(all), err)
	}
}

// What cannot be, and what differs from its preview, is refused, and all stays.
func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	h := newHost(t, two)
	h.mkdir("a1")
	h.mkdir("b1")
	r := h.run()
	r.await(agent.Placed, "b:b1")
	before, files := r.cpus(), tree(t, h.k)
	narrow := header + "allowed: 0-3\n" + two
	for name, tt := range map[string]struct {
		p    api.Proposal
		want string
	}{
		"not valid":           {api.Proposal{Text: header + "polcy: {}\n", Name: "n.yaml"}, "n.yaml:3: polcy: unknown field"},
		"not on this host":    {api.Proposal{Text: header + "reserved: '9'\n" + strings.Replace(two, "cpus: 2}", "limits: {memoryHigh: 1Gi}}", 1), Name: "n.yaml"}, "n.yaml:3: reserved: CPUs 9 are not there"},
		"the limits, as well": {api.Proposal{Text: header + strings.Replace(two, "cpus: 2}", "cpus: 2, limits: {memoryHigh: 1Gi}}", 1), Name: "n.yaml"}, "n.yaml:4: workloads[0].limits.memoryHigh: memory.high: not supported"},
		"a loss":              {api.Proposal{Text: narrow}, "it would take the places of b:b1"},
		"another preview":     {api.Proposal{Text: header + one, Digest: "00"}, "what it comes to has changed since the preview"},
		"no such version":     {api.Proposal{Version: 7}, "version 7 of the configuration is not there"},
		"text and version":    {api.Proposal{Version: 1, Text: header}, "only one of them"},
	} {
		_, err := r.ApplyConfig(t.Context(), tt.p)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", name, err, tt.want)
		}
	}
	h.failWith(os.ErrPermission)
	if _, err := r.ApplyConfig(t.Context(), api.Proposal{Text: narrow, Losses: true}); api.KindOf(err) != "kernel" {
		t.Errorf("the kernel refuses: %v", err)
	}
	h.failWith(nil)
	if diff := cmp.Diff(before, r.cpus()); diff != "" {
		t.Errorf("workloads (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(files, tree(t, h.k)); diff != "" {
		t.Errorf("tree (-before +after):\n%s", diff)
	}
	if all, err := r.Versions(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%d versions, %v", len(all), err)
	}
	if text, err := os.ReadFile(h.file); err != nil || string(text) != header+two {
		t.Errorf("the file has %q, %v", text, err)
	}
	got, err := r.PreviewConfig(t.Context(), api.Proposal{Text: narrow})
	if err != nil || !slices.ContainsFunc(got.Effects, func(e agent.Effect) bool {
		return e.ID == "b:b1" && e.Kind == agent.EffectLost && strings.Contains(e.Reason, "exclusive to a:a1")
	}) {
		t.Errorf("the preview of a loss: %+v, %v", got.Effects, err)
	}
}

// An agent that is killed amid an apply has the configuration of its file in force when
// it starts again, and that one is in the history with its author.
func TestKilledApply(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file string
		want []string
	}{
		"before the file":  {one, []string{"1 start 0"}},
		"behind the file":  {two, []string{"2 apply 4711", "1 start 0"}},
		"the file, edited": {"noFloor: true\n" + one, []string{"2 start 0", "1 start 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, one)
			if err := h.run().stop(); err != nil {
				t.Fatal(err)
			}
			v := versions{filepath.Join(h.dir, versionsDir(config.Default()))}
			if _, err := v.prepare(api.Version{Number: 2, How: "apply", PID: 4711, Text: header + two}); err != nil {
				t.Fatal(err)
			}
			h.configure(tt.file)
			r := h.run()
			all, err := r.Versions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range all {
				got = append(got, fmt.Sprint(v.Number, " ", v.How, " ", v.PID))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(filepath.Join(v.dir, nextVersion)); err == nil {
				t.Error("the prepared version is still there")
			}
		})
	}
}

// A history that another user could have written is not read, and a file that another
// user could change is not replaced.
func TestApplyTrustsNobody(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	r := h.run()
	if err := os.Chmod(filepath.Dir(h.file), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ApplyConfig(t.Context(), api.Proposal{Text: header + two}); err == nil || !strings.Contains(err.Error(), "others may write to it") {
		t.Errorf("in a directory that others may write to: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "config")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, versionFile(1)), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, versionFile(1)), 0o666); err != nil {
		t.Fatal(err)
	}
	if all, err := (versions{dir}).list(); err == nil {
		t.Errorf("a file that others may write is read: %v", all)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := (versions{dir}).prepare(api.Version{}); err == nil {
		t.Error("a directory that others may write is used")
	}
}

// An agent starts under whatever configuration is valid for its host.
func TestValidStarts(t *testing.T) {
	t.Parallel()
	for seed := range 12 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(18, uint64(seed)))
			for invalid := 0; ; invalid++ {
				if invalid > 50 {
					t.Fatal("no configuration by chance is valid")
				}
				text := wildConfig(rng)
				h := newHost(t, text)
				check, err := CheckHost(h.opt)
				if err != nil {
					t.Fatal(err)
				}
				c, err := config.Parse([]byte(header+text), "any")
				if err == nil {
					err = check(c)
				}
				if err != nil {
					continue
				}
				for _, name := range []string{"a1", "b1", "c1"} {
					h.mkdir(name)
				}
				h.run().settled()
				return
			}
		})
	}
}

// wildConfig is a configuration that this host may be unable to follow.
func wildConfig(rng *rand.Rand) string {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	text := anyConfig(rng)
	text = strings.Replace(text, "workloads:\n", pick("", "confine: [/**]\n", "classes: {LS: {memoryLow: 1Gi}}\n", "classes: {BE: {quota: 9}}\n", "classes: {LSE: {weight: 1}}\n")+
		pick("", "devices: [{name: nic0, nodes: '1'}]\n", "devices: [{name: nic0, nodes: '7'}]\n", "devices: [{name: nic0, pci: '0000:00:1f.0'}]\n")+
		pick("", "guard: {mode: enforce}\n", "guard: {suppression: {group: berth-idle, by: quota}}\n")+
		"workloads:\n", 1)
	return strings.Replace(text, "weight: 200", pick("weight: 200", "weight: 0", "memoryHigh: 1Gi", "memoryMax: 1Gi", "quota: 99", "burst: 5ms", "ioWeight: 200, weight: 20"), 1)
}

// What shares out the time of disks by io.cost is checked, too.
func TestCheckCost(t *testing.T) {
	t.Parallel()
	const classes = "classes: {io: {classes: {slow: [{priority: idle}]}, cost: [{devices: [vda]}]}}\n"
	check, err := CheckHost(newHost(t, classes).opt)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse([]byte(header+classes), "any")
	if err != nil {
		t.Fatal(err)
	}
	if err := check(c); err == nil || !strings.Contains(err.Error(), "classes.io.cost: io.cost.qos: not supported") {
		t.Errorf("on cgroup v1: %v", err)
	}
}
