package agent

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// On v1 a CPU that goes offline is taken from every set: groups that are kept off exclusive
// CPUs are placed on, go on being so, and get back what is online of what they had.
func TestOfflineV1(t *testing.T) {
	t.Parallel()
	w := newWorld(t, layouts()["v1"])
	n := w.open()
	api := w.place(n, spec("api", place.LSE, 2000, 9000100))
	n.Close()
	if err := w.k.SetOnline("0-6"); err != nil {
		t.Fatal(err)
	}
	n = w.open()
	w.repairsNothing(n, "again")
	if is, err := n.Get(t.Context(), "api"); err != nil || is.Grant.Own != api.Grant.Own {
		t.Errorf("api: %v, %v", is, err)
	}
	db := w.place(n, spec("db", place.LSE, 1000, 9000101))
	w.look()
	w.exclusive("offline", []Workload{api}, []Workload{api, db})
	if err := n.Release(t.Context(), "db", Kill); err != nil {
		t.Error(err)
	}
	n.Close()
	items, err := Restore(t.Context(), w.options())
	if err != nil {
		t.Error(err)
	}
	for _, item := range items {
		if item.Outcome == kernel.Changed || item.Outcome == kernel.Failed {
			t.Errorf("%+v", item)
		}
	}
	for _, group := range []string{"system.slice", "system.slice/sshd.service", "web.slice"} {
		if got, err := kernel.ReadText(w.k.FS(), w.cpusets+"/"+group+"/cpuset.cpus"); err != nil || got != "0-6" {
			t.Errorf("%s has %q, %v", group, got, err)
		}
	}
}

// What is confined to reserved CPUs is on those of them that are online, and where none is, on all that
// nobody owns.
func TestConfineToOffline(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"v1", "v2"} {
		for within, want := range map[string]string{"6-7": "6", "7": "0-6"} {
			w := newWorld(t, layouts()[layout])
			w.opt.Within = cpuset.MustParse(within)
			w.opt.Config.Reserved = w.opt.Within
			if err := w.k.SetOnline("0-6"); err != nil {
				t.Fatal(err)
			}
			n := w.open()
			api := w.place(n, spec("api", place.LSE, 2000, 9000100))
			wants := cpuset.MustParse(want).Minus(api.Grant.Own)
			if got := w.file(w.cpusets + "/system.slice/" + cpusFile); got != wants.String() {
				t.Errorf("%s, to %s: system.slice has %s, want %s", layout, within, got, wants)
			}
		}
	}
}
