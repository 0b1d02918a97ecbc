package daemon

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
	"berth.dev/berth/watch/pods"
)

// What the files of a node tell is what the guard calls containers, and which of them it
// protects; what Berth's records say goes first.
func TestWithPods(t *testing.T) {
	t.Parallel()
	root, groups := fstest.MapFS{}, map[string]string{}
	for i, c := range []struct{ pod, class, name string }{
		{"shop_db-0", "burstable/", "postgres"}, {"kube-system_dns", "besteffort/", "dns"}, {"batch_job", "besteffort/", "main"}, {"batch_keep", "besteffort/", "main"},
	} {
		uid := strings.Repeat(string(rune('1'+i)), 8) + "-2222-3333-4444-555555555555"
		id := strings.Repeat(string(rune('a'+i)), 64)
		namespace, pod, _ := strings.Cut(c.pod, "_")
		root["var/log/pods/"+c.pod+"_"+uid+"/"+c.name+"/0.log"] = &fstest.MapFile{}
		root["var/log/containers/"+pod+"_"+namespace+"_"+c.name+"-"+id+".log"] = &fstest.MapFile{}
		groups[namespace+"/"+pod+"/"+c.name] = "kubepods/" + c.class + "pod" + uid + "/" + id
	}
	g := &Guard{pods: pods.NewDirectory(root)}
	if err := g.pods.Refresh(); err != nil {
		t.Fatal(err)
	}
	conf := config.Default()
	conf.Protected = []string{"batch/keep"}
	db := groups["shop/db-0/postgres"]
	recorded := map[string]guard.Workload{db: {Group: db, Class: place.LSR, Sensitive: true}}
	all := []string{"system.slice/cron.service"}
	for _, group := range groups {
		all = append(all, group)
	}
	known, names := g.withPods(recorded, map[string]string{db: "shop/db-0/postgres~1"}, all, conf)
	if names[db] != "shop/db-0/postgres~1" || names[groups["batch/job/main"]] != "batch/job/main" || len(names) != 8 {
		t.Errorf("names %q", names)
	}
	if w := known[db]; w.Class != place.LSR || !w.Sensitive || w.Protected {
		t.Errorf("%+v", w)
	}
	for name, why := range map[string]string{"kube-system/dns/dns": "the cluster depends", "batch/keep/main": "the configuration", "batch/job/main": ""} {
		if w := known[groups[name]]; w.Protected != (why != "") || !strings.HasPrefix(w.Why, why) || w.Protected && w.Class != place.BE {
			t.Errorf("%s: %+v", name, w)
		}
	}
	if len(recorded) != 1 {
		t.Error("what was known has changed")
	}
	// A user calls a group like that of a container that is not to be acted on, and so does who is in one.
	dns := groups["kube-system/dns/dns"]
	for _, borrowed := range []string{"user.slice/user-1000.slice/user@1000.service/" + dns, groups["batch/job/main"] + "/" + dns} {
		known, names := g.withPods(nil, nil, []string{borrowed}, conf)
		if len(known)+len(names) > 0 {
			t.Errorf("%s is protected: %+v, as %q", borrowed, known, names)
		}
	}
	// So does a user whose group lies at the top of the tree.
	root["sys/fs/cgroup/alice"] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, Sys: &syscall.Stat_t{Uid: 1000, Mode: syscall.S_IFDIR | 0o755}}
	root["sys/fs/cgroup/machine"] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, Sys: &syscall.Stat_t{Mode: syscall.S_IFDIR | 0o755}}
	g.o.Root, g.tree = kernel.NewRoot("", onlyRead{fsys: root}), "sys/fs/cgroup"
	for around, want := range map[string]bool{"alice": false, "machine": true} {
		known, names := g.withPods(map[string]guard.Workload{}, map[string]string{}, []string{around + "/" + dns}, conf)
		if known[around+"/"+dns].Protected != want || (len(names) > 0) != want {
			t.Errorf("%s/%s: %+v, as %q; want protected %v", around, dns, known, names, want)
		}
		if p := g.party(around + "/" + dns); (p.Pod != nil) != want {
			t.Errorf("%s/%s is told as of the pod %v", around, dns, p.Pod)
		}
	}
	if p := g.party(groups["batch/job/main"]); p.Pod == nil || p.Pod.Pod != "job" || p.Pod.QoS != pods.BestEffort {
		t.Errorf("%+v", p)
	}
}

// onlyRead are files of a tree that is only read.
type onlyRead struct {
	kernel.Files
	fsys fs.FS
}

func (f onlyRead) FS() fs.FS { return f.fsys }

// What the guard found and did is told with the names of containers, not the paths of their groups.
func TestToldByName(t *testing.T) {
	t.Parallel()
	var told []api.Event
	g := &Guard{pods: pods.NewDirectory(fstest.MapFS{}), names: map[string]string{"kubepods/a": "shop/db-0/postgres", "kubepods/b": "batch/job/main"}}
	g.o.Record = func(e api.Event) { told = append(told, e) }
	g.found([]detect.Finding{{Victim: "kubepods/a", Suspect: "kubepods/b", Resource: detect.CPU}, {Victim: "kubepods/a", Resource: detect.CPU}})
	action := control.Action{Remedy: detect.Weight, Group: "kubepods/b", Victim: "kubepods/a", Suspect: "kubepods/b", Limits: cgroup.Limits{Idle: cgroup.On}}
	g.acted(control.Event{Outcome: control.Applied, Victim: "kubepods/a", Suspect: "kubepods/b", Action: &action})
	g.acted(control.Event{Outcome: control.GaveUp, Victim: "kubepods/a"})
	wants := []string{"because of batch/job/main", "", "against batch/job/main", ""}
	for i, want := range wants {
		e := told[i]
		if e.ID != "shop/db-0/postgres" || !strings.Contains(e.Text, "shop/db-0/postgres") || !strings.Contains(e.Text, want) || strings.Contains(e.Text, "kubepods") {
			t.Errorf("%d: %s: %s", i, e.ID, e.Text)
		}
	}
	if e := told[2].Guard; len(told) != len(wants) || e.Victim != "kubepods/a" || e.Action.Group != "kubepods/b" {
		t.Errorf("%d events; programs are told of %s, %+v", len(told), e.Victim, e.Action)
	}
}
