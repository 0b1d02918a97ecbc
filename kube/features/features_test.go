package features

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/doctor"
	"berth.dev/berth/machine"
)

func report(states map[string]doctor.Capability) *doctor.Report {
	r := &doctor.Report{}
	for name, c := range states {
		c.Name = name
		r.Capabilities = append(r.Capabilities, c)
	}
	return r
}

func TestOf(t *testing.T) {
	t.Parallel()
	m, err := machine.Short("2s1n4c2t")
	if err != nil {
		t.Fatal(err)
	}
	got := Of(m, report(map[string]doctor.Capability{
		"cpuset": {State: doctor.OK}, "cgroup": {State: doctor.OK, Found: "v2"}, "psi": {State: doctor.OK}, "pmu": {State: doctor.Missing},
		"cache-ways": {State: doctor.OK}, "cpufreq": {State: doctor.Limited, Found: "intel_pstate, powersave on 8 policies, turbo on"},
		"bpf": {State: doctor.Unknown},
	}), "berth").Lines()
	want := strings.Fields(`berth.dev/cgroup=v2 berth.dev/cores=8 berth.dev/cpufreq=limited berth.dev/cpufreq.driver=intel_pstate
		berth.dev/cpufreq.governor=powersave berth.dev/cpufreq.turbo=on berth.dev/cpus=16 berth.dev/hybrid=false
		berth.dev/isolation=cpuset-and-cache berth.dev/l3-cpus=8 berth.dev/l3-domains=2 berth.dev/numa-nodes=2 berth.dev/policy=berth
		berth.dev/psi=ok berth.dev/rdt.cache-ways=ok berth.dev/sockets=2 berth.dev/threads-per-core=2`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A tree without anything has no features but those that say so.
func TestOfNothing(t *testing.T) {
	t.Parallel()
	got := Of(nil, doctor.Look(fstest.MapFS{}, doctor.Probes{}), "").Lines()
	if diff := cmp.Diff([]string{"berth.dev/isolation=affinity"}, got); diff != "" {
		t.Error(diff)
	}
}

// The rules of the example match features that there are.
func TestExampleRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../examples/kube/nodefeaturerule.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		Spec struct {
			Rules []struct {
				MatchFeatures []struct {
					Feature          string
					MatchExpressions map[string]any
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &rule); err != nil {
		t.Fatal(err)
	}
	m, err := machine.Short("2s1n4c2t")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]doctor.Capability{"cpufreq": {State: doctor.OK, Found: "d, performance on 1 policy, turbo on"}}
	for name := range capabilities() {
		if name != "cpufreq" {
			all[name] = doctor.Capability{State: doctor.OK}
		}
	}
	f := Of(m, report(all), "berth")
	have := map[string]map[string]string{"berth.node": f, "berth.l3": f.Object("", "", "", "", m).Spec.Features.Instances["berth.l3"].Elements[0].Attributes}
	n := 0
	for _, r := range rule.Spec.Rules {
		for _, match := range r.MatchFeatures {
			for name := range match.MatchExpressions {
				n++
				if _, ok := have[match.Feature][name]; !ok {
					t.Errorf("there is no feature %s of %s", name, match.Feature)
				}
			}
		}
	}
	if n < 5 {
		t.Errorf("%d expressions", n)
	}
}

func FuzzSet(f *testing.F) {
	for _, seed := range []string{"", "on", "-", "a b", strings.Repeat("x", 70), "ünï", "a=b\n# +no-label"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		all := Features{}
		all.set("name", value)
		v, ok := all["name"]
		if ok != (v != "") || len(v) > 63 || strings.Trim(v, "-_.") != v {
			t.Errorf("%q became %q", value, v)
		}
		if lines := all.Lines(); ok && (len(lines) != 1 || strings.ContainsAny(lines[0], " \n#")) {
			t.Errorf("%q: %q", value, lines)
		}
	})
}

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	for range 2 {
		if err := Write(dir, Features{"smt": "on", "cpus": "8"}, at); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(Path(dir))
	want := "# what this node has for placing; berth-node writes this file\n# +expiry-time=2026-11-01T11:00:00Z\nberth.dev/cpus=8\nberth.dev/smt=on\n"
	if err != nil || string(text) != want {
		t.Errorf("%q, %v", text, err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("%v", names)
	}
	info, err := os.Stat(Path(dir))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info, err)
	}
}

// Nothing is written where another user could have put a link.
func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	link := t.TempDir() + "/link"
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{open: "chmod 755", link: "not a directory", link + ".none": "no such file"} {
		if err := Write(dir, Features{"a": "b"}, time.Time{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	// The dot file of another is not followed.
	dir, target := t.TempDir(), t.TempDir()+"/target"
	if err := os.Symlink(target, dir+"/."+FileName+".new"); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, Features{"a": "b"}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(target); err == nil {
		t.Error("it wrote through a link")
	}
}

func TestObject(t *testing.T) {
	t.Parallel()
	m, err := machine.Short("1s1n4c2t")
	if err != nil {
		t.Fatal(err)
	}
	o := Features{"smt": "on"}.Object("berth", "berth-n", "n", "u", m)
	if o.Metadata.Labels["nfd.node.kubernetes.io/node-name"] != "n" || o.Spec.Labels["berth.dev/smt"] != "on" ||
		o.Spec.Features.Attributes["berth.node"].Elements["smt"] != "on" || len(o.Metadata.Owners) != 1 {
		t.Errorf("%+v", o)
	}
	want := []Instance{{map[string]string{"id": "l3_0", "cpus": "8", "numa-node": "0"}}}
	if diff := cmp.Diff(want, o.Spec.Features.Instances["berth.l3"].Elements); diff != "" {
		t.Error(diff)
	}
}
