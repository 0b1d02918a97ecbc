package nri

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// While the plugin is stopped berth run places beside its containers: it takes no CPU that one
// of them owns, and takes those that it gives away from the others. The plugin takes over from
// there: the job keeps what it has as long as it is there.
func TestRunWhileStopped(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const webGroup, dbGroup = "kubepods/burstable/podweb/web.a", "kubepods/poddb/db.a"
			g := newGroups(t, layout, "system.slice", "vip.slice", webGroup, dbGroup)
			opt, _ := options(t, "1s1n4c2t")
			opt.Node.Root, opt.Effective, opt.Confine, opt.Protected = g.root, nil, []string{"*"}, []string{"vip.slice"}
			ctx := context.Background()
			groupOf := map[string]string{"web.a": webGroup, "db.a": dbGroup}
			apply := func(updates []*api.ContainerUpdate) {
				t.Helper()
				for _, u := range updates {
					must(t, g.k.WriteFile(g.file(groupOf[u.GetContainerId()], "cpuset.cpus"), u.GetLinux().GetResources().GetCpu().GetCpus()))
				}
			}
			has := func(group string) cpuset.Set {
				t.Helper()
				return cpuset.MustParse(g.files("cpuset.cpus")[group])
			}
			web, db := pod("web", nil), guaranteed(pod("db", exclusive))
			containers := []*api.Container{container(web, "a", 100), container(db, "a", 2000)}
			p := open(t, opt)
			for i, pod := range []*api.PodSandbox{web, db} {
				c := containers[i]
				adjust, updates, err := p.CreateContainer(ctx, pod, c)
				must(t, err)
				apply(updates)
				must(t, g.k.WriteFile(g.file(groupOf[c.Id], "cpuset.cpus"), adjust.GetLinux().GetResources().GetCpu().GetCpus()))
				must(t, p.PostStartContainer(ctx, pod, c))
				containers[i].State = api.ContainerState_CONTAINER_RUNNING
				c.Linux.Resources.Cpu.Cpus = "0-7"
			}
			dbs := has(dbGroup)
			confined := func(when string, taken cpuset.Set, w agent.Workload) {
				t.Helper()
				if all, notes := g.overlapping(taken), strings.Join(w.Notes, "; "); slices.Contains(all, "system.slice") || !slices.Contains(all, "vip.slice") || strings.Contains(notes, "confined") {
					t.Errorf("%s: on CPUs %s are %q; notes %q", when, taken, all, notes)
				}
			}
			w, err := p.node.Get(ctx, "default/db/a")
			must(t, err)
			confined("a container", dbs, w)
			must(t, p.Close())

			settings := opt.Node
			settings.Policies = policies.New
			run, err := agent.Open(ctx, settings)
			must(t, err)
			must(t, g.k.Start("4242"))
			process, err := kernel.ReadProcess(g.root.FS(), "4242")
			must(t, err)
			start := func(id string, class place.Class, milli int) agent.Workload {
				w, err := run.Place(ctx, agent.Spec{
					Request: place.Request{ID: id, Class: class, Milli: milli}, PID: 4242, Owner: agent.Owner{PID: 4242, Start: process.Start},
				})
				must(t, err)
				return w
			}
			start("sharer", place.LS, 100)
			job := start("job", place.LSE, 2000)
			if own := job.Grant.Own; own.Len() != 2 || own.Overlaps(dbs) || has(dbGroup) != dbs || has(webGroup).Overlaps(own.Union(dbs)) {
				t.Errorf("the job has %s, db %s, before %s, web %s", own, has(dbGroup), dbs, has(webGroup))
			}
			confined("a job", job.Grant.Own.Union(dbs), job)
			must(t, run.Close())

			opt.Node.Enforcer, opt.Node.Events = nil, nil
			p = open(t, opt)
			updates, err := p.Synchronize(ctx, []*api.PodSandbox{web, db}, containers)
			must(t, err)
			apply(updates)
			all, err := p.node.List(ctx)
			must(t, err)
			if len(all) != 4 || has(dbGroup) != dbs || has(webGroup).Overlaps(job.Grant.Own.Union(dbs)) {
				t.Errorf("%d workloads; db has %s, before %s, web %s beside the job's %s", len(all), has(dbGroup), dbs, has(webGroup), job.Grant.Own)
			}
			taken := job.Grant.Own.Union(dbs)
			last, was := pod("last", exclusive), has(webGroup)
			_, updates, err = p.CreateContainer(ctx, last, container(last, "a", 2000))
			must(t, err)
			taken = taken.Union(p.table.containers["last.a"].want.cpus)
			if taken.Len() != 6 || has("berth/sharer").Overlaps(taken) || cpuset.MustParse(cpusOf(updates, "web.a")).Overlaps(taken) {
				t.Errorf("of %s taken, the other job has %s, web %s", taken, has("berth/sharer"), cpusOf(updates, "web.a"))
			}
			if has(webGroup) != was {
				t.Errorf("what the runtime is told is written besides: %s, before %s", has(webGroup), was)
			}
			apply(updates)
			must(t, g.k.Exit("4242"))
			p.repair(ctx) // the next look at what is written
			if all, err := p.node.List(ctx); err != nil || len(all) != 3 {
				t.Errorf("after the jobs have ended there are %d workloads, %v", len(all), err)
			}
			if s := p.table.containers["web.a"].want.cpus; !s.Contains(job.Grant.Own) {
				t.Errorf("web is to have %s, without the job's %s", s, job.Grant.Own)
			}
			if _, there := g.files("cpuset.cpus")["berth/job"]; there {
				t.Error("the job's group is left")
			}
		})
	}
}

// Where what is confined is on record, berth run has it there, too, while the plugin is stopped: on the
// reserved CPUs, and not on all that nobody owns.
func TestConfineToWhileStopped(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const dbGroup = "kubepods/poddb/db.a"
			g, ctx := newGroups(t, layout, "system.slice", dbGroup), context.Background()
			opt, _ := options(t, "1s1n4c2t")
			reserved := cpuset.MustParse("0-1")
			opt.Node.Root, opt.Effective, opt.Confine, opt.Within = g.root, nil, []string{"system.slice"}, reserved
			opt.Node.Config.Reserved = reserved
			is := func(when string) {
				t.Helper()
				if got := cpuset.MustParse(g.files("cpuset.cpus")["system.slice"]); got != reserved {
					t.Errorf("%s: system.slice has %s, want the reserved %s", when, got, reserved)
				}
			}
			p := open(t, opt)
			db := guaranteed(pod("db", exclusive))
			box := container(db, "a", 2000)
			adjust, _, err := p.CreateContainer(ctx, db, box)
			must(t, err)
			must(t, g.k.WriteFile(g.file(dbGroup, "cpuset.cpus"), adjust.GetLinux().GetResources().GetCpu().GetCpus()))
			must(t, p.PostStartContainer(ctx, db, box))
			is("a container")
			must(t, p.Close())

			settings := opt.Node
			settings.Policies = policies.New
			run, err := agent.Open(ctx, settings)
			must(t, err)
			must(t, g.k.Start("4242"))
			process, err := kernel.ReadProcess(g.root.FS(), "4242")
			must(t, err)
			_, err = run.Place(ctx, agent.Spec{
				Request: place.Request{ID: "job", Class: place.LSE, Milli: 2000}, PID: 4242, Owner: agent.Owner{PID: 4242, Start: process.Start},
			})
			must(t, err)
			is("a job")
			must(t, run.Close())
		})
	}
}
