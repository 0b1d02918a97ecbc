package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	id      = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	uid     = "8d2c1f0e-1111-2222-3333-444455556666"
	uidUnit = "8d2c1f0e_1111_2222_3333_444455556666"
)

func TestMatchGroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		glob, group string
		want        bool
	}{
		{"/a", "/a", true}, {"/a", "a", true}, {"/a", "/a/", true}, {"/", "/", true},
		{"/a/*", "/a/b", true}, {"/a/*/c", "/a/b/c", true}, {"/a/b?", "/a/bc", true}, {"/a/[bc]", "/a/c", true},
		{"/**", "/", true}, {"/**", "/a/b", true}, {"/a/**", "/a", true}, {"/a/**/z", "/a/z", true}, {"/a/**/z", "/a/b/c/z", true},
		{"/**/b/**/d", "/a/b/c/b/d", true}, {"/**/x/*", "/x/x/x", true},
		{"/a", "/b", false}, {"/a", "/a/b", false}, {"/a/*", "/a", false}, {"/a/*", "/a/b/c", false}, {"/*", "/", false},
		{"/a/**/z", "/a/b", false}, {"/**/z", "/z/a", false}, {"/a/**/b/**/c", "/a/c/b", false}, {"/", "/a", false},
	} {
		if got := matchGroup(components(tt.glob), components(tt.group)); got != tt.want {
			t.Errorf("%s matches %s: %v, want %v", tt.glob, tt.group, got, tt.want)
		}
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	c := parse(t, `
confine: [/system.slice/**]
protected: [/system.slice/ssh*, /init.scope]
workloads:
- {name: one, match: {unit: web-1.service}}
- {name: web, match: {unit: web-*.service}}
- {name: named, match: {unit: cpu.service}}
- {name: pod, match: {container: {pod: 8d2c*}}}
- {name: docker, match: {container: {runtime: docker, id: 0123*}}}
- {name: box, match: {container: {runtime: lxc, name: box-*}}}
- {name: rest, match: {cgroup: /system.slice/*}}
`)
	got := map[string]string{}
	want := map[string]string{
		"/system.slice/web-1.service":                     "one",
		"/system.slice/web-2.service":                     "web",
		"/system.slice/_cpu.service":                      "named",
		"/system.slice/web-2.service/below":               "confined",
		"/kubepods/pod" + uid + "/" + id:                  "pod",
		"/system.slice/docker-" + id + ".scope":           "docker",
		"/system.slice/docker-" + id[1:] + "0" + ".scope": "rest",
		"/lxc/box-1":                               "box",
		"/lxc/other":                               "",
		"/system.slice/cron.service":               "rest",
		"/system.slice/ssh.service":                "protected",
		"/system.slice/sshd.service/web-1.service": "protected",
		"/init.scope":                              "protected",
		"/":                                        "",
		"/user.slice":                              "",
	}
	for group := range want {
		w, ok := c.Match(Candidate{Path: group})
		switch {
		case ok:
			got[group] = w.Name
		case c.IsProtected(group):
			got[group] = "protected"
		case c.IsConfined(Candidate{Path: group}):
			got[group] = "confined"
		default:
			got[group] = ""
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Of a group whose name another user chose, only entries that say so are asked.
func TestDelegated(t *testing.T) {
	t.Parallel()
	c := &NodeConfig{Workloads: []Workload{
		{Name: "unit", Match: Match{Unit: "web.service"}},
		{Name: "any", Match: Match{Unit: "*.service", Delegated: true}},
	}}
	for _, tt := range []struct {
		group     string
		delegated bool
		want      string
	}{
		{"/system.slice/web.service", false, "unit"},
		{"/user.slice/web.service", true, "any"},
		{"/system.slice/db.service", false, "any"},
	} {
		if w, ok := c.Match(Candidate{Path: tt.group, Delegated: tt.delegated}); !ok || w.Name != tt.want {
			t.Errorf("%s, delegated %t: %v, want %s", tt.group, tt.delegated, w, tt.want)
		}
	}
	c.Workloads = c.Workloads[:1]
	if w, ok := c.Match(Candidate{Path: "/user.slice/web.service", Delegated: true}); ok {
		t.Errorf("%v takes a group whose name another user chose", w)
	}
}

// A runtime tells of a container what no path does.
func TestMatchContainer(t *testing.T) {
	t.Parallel()
	c := &NodeConfig{Protected: []string{"/kept"}, Workloads: []Workload{
		{Name: "labelled", Match: Match{Container: &Container{Namespace: "shop-*", Label: map[string]string{"app": "web", "tier": ""}}}},
		{Name: "namespace", Match: Match{Container: &Container{Namespace: "shop-eu"}}},
		{Name: "any", Match: Match{Container: &Container{Runtime: "containerd"}}},
	}}
	web := map[string]string{"app": "web", "tier": "", "more": "x"}
	for _, tt := range []struct {
		id   ContainerID
		path string
		want string
	}{
		{ContainerID{Namespace: "shop-eu", Labels: web}, "", "labelled"},
		{ContainerID{Namespace: "shop-eu", Labels: map[string]string{"app": "web"}}, "", "namespace"},
		{ContainerID{Namespace: "shop-us", Labels: map[string]string{"app": "db", "tier": ""}, Runtime: "containerd"}, "", "any"},
		{ContainerID{Labels: web}, "", ""},
		{ContainerID{Namespace: "shop-eu", Labels: web}, "/kept/pod", ""},
	} {
		w, ok := c.Match(Candidate{Path: tt.path, Container: &tt.id})
		if ok != (tt.want != "") || ok && w.Name != tt.want {
			t.Errorf("%+v in %q: %+v, want %q", tt.id, tt.path, w, tt.want)
		}
	}
	path := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope"
	if w, ok := c.Match(Candidate{Path: path}); !ok || w.Name != "any" {
		t.Errorf("by its path: %+v", w)
	}
}

func TestIsConfined(t *testing.T) {
	t.Parallel()
	c := parse(t, "confine: [/a/*]\nprotected: [/a/p]\nworkloads: [{name: w, match: {cgroup: /a/w}}]\n")
	for group, want := range map[string]bool{"/a/x": true, "/a/p": false, "/a/w": false, "/a": false} {
		if got := c.IsConfined(Candidate{Path: group}); got != want {
			t.Errorf("%s is confined: %v, want %v", group, got, want)
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, group := range []string{"/kubepods/pod" + uid + "/" + id, "/system.slice:docker:" + id, `/machine.slice/machine-a\x2db.scope`, "//..//", "/-.scope"} {
		f.Add("/a/**/*", group)
	}
	f.Fuzz(func(t *testing.T, glob, group string) {
		// A path without signs matches itself, and ** matches all.
		if !strings.ContainsAny(group, `*?[\`) && !matchGroup(components(group), components(group)) {
			t.Errorf("%q does not match itself", group)
		}
		if checkGroupGlob(glob) == nil && matchGroup(components(glob), components(group)) && !matchGroup([]string{"**"}, components(group)) {
			t.Errorf("** does not match %q", group)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	c := Default()
	for i := range 20 {
		c.Workloads = append(c.Workloads, Workload{Match: Match{Unit: fmt.Sprintf("web-%d*.service", i)}})
	}
	c.Workloads = append(c.Workloads, Workload{Match: Match{Container: &Container{Runtime: "containerd"}}})
	group := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope"
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := c.Match(Candidate{Path: group}); !ok {
			b.Fatal("no match")
		}
	}
}
