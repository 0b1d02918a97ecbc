package daemon

import (
	"strings"
	"testing"
	"testing/fstest"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
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
	if p := g.party(groups["batch/job/main"]); p.Pod == nil || p.Pod.Pod != "job" || p.Pod.QoS != pods.BestEffort {
		t.Errorf("%+v", p)
	}
}
