package agent

import (
	"context"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// A protected group is not confined, nor is one around it: its siblings are.
func TestProtected(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, layout)
			const sibling = "system.slice/cron.service"
			if err := w.k.Mkdir(w.cpusets + "/" + sibling); err != nil {
				t.Fatal(err)
			}
			if len(layout.V1) > 0 {
				w.write(w.cpusets+"/"+sibling+"/"+memsFile, "0-1")
				w.write(w.cpusets+"/"+sibling+"/"+cpusFile, "0-7")
			} else {
				w.write(w.cpusets+"/cgroup.subtree_control", "+cpuset")
				w.write(w.cpusets+"/system.slice/cgroup.subtree_control", "+cpuset")
			}
			before := w.tree()
			w.opt.Confine, w.opt.Protected = []string{"*"}, []string{"system.slice/ssh*"}
			n := w.open()
			own := w.place(n, spec("api", place.LSE, 2000, 0)).Grant.Own
			check := func(when string, confined map[string]bool) {
				t.Helper()
				for group, want := range confined {
					file := w.cpusets + "/" + group + "/" + cpusFile
					text := strings.TrimSpace(w.tree()[file])
					if got := text != "" && !cpuset.MustParse(text).Overlaps(own); got != want {
						t.Errorf("%s: %s has CPUs %q: confined %v, want %v", when, group, text, got, want)
					}
				}
			}
			protected := map[string]bool{"system.slice": false, "system.slice/sshd.service": false, sibling: true, "web.slice": true}
			check("protected", protected)
			s := spec("ssh", place.LS, 0, 0)
			s.Group = "system.slice/sshd.service"
			if _, err := n.Place(ctx, s); err == nil || !strings.Contains(err.Error(), "protected") {
				t.Errorf("it was placed: %v", err)
			}
			n.Close()

			// One that is confined already and then protected gets its CPUs back.
			w.opt.Protected = nil
			n = w.open()
			reconcile := func() {
				t.Helper()
				if _, err := n.Reconcile(ctx); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			check("not protected", map[string]bool{"system.slice": true, "web.slice": true})
			n.Close()
			w.opt.Protected = []string{"system.slice/ssh*"}
			n = w.open()
			reconcile()
			check("protected again", protected)

			if err := n.Release(ctx, "api", Kill); err != nil {
				t.Fatal(err)
			}
			w.sameTree(before)
		})
	}
}
