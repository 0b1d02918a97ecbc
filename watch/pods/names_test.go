package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func idOf(n int) string { return fmt.Sprintf("%064x", n) }

const (
	db   = "kubepods/burstable/pod" + uid
	uid2 = "11111111-2222-3333-4444-555555555555"
	job  = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod11111111_2222_3333_4444_555555555555.slice"
)

func node() fstest.MapFS {
	return fstest.MapFS{
		"var/log/pods/shop_db-0_" + uid + "/postgres/0.log":         {},
		"var/log/pods/batch_job.1_" + uid2 + "/main/3.log":          {},
		"var/log/containers/db-0_shop_postgres-" + idOf(1) + ".log": {},
		"var/log/containers/job.1_batch_main-" + idOf(2) + ".log":   {},
		"run/containerd/io.containerd.runtime.v2.task/k8s.io/" + idOf(3) + "/config.json": {Data: []byte(`{"annotations": {
			"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-name": "db-0",
			"io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.sandbox-uid": "` + uid + `"}}`)},
		"run/containers/storage/overlay-containers/" + idOf(4) + "/userdata/config.json": {Data: []byte(`{"annotations": {
			"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.container.name": "side",
			"io.kubernetes.pod.name": "db-0", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "` + uid + `"}}`)},
	}
}

func open(t *testing.T, root fstest.MapFS) *Directory {
	t.Helper()
	d := NewDirectory(root)
	if err := d.Refresh(); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNames(t *testing.T) {
	t.Parallel()
	d := open(t, node())
	groups := map[string]string{
		db: "shop/db-0", db + "/" + idOf(1): "shop/db-0/postgres", db + "/" + idOf(3): "shop/db-0/POD", db + "/crio-" + idOf(4): "shop/db-0/side",
		job: "batch/job.1", job + "/cri-containerd-" + idOf(2) + ".scope": "batch/job.1/main",
		job + "/cri-containerd-" + idOf(1) + ".scope": "", // it says that it is in another pod
		job + "/cri-containerd-" + idOf(3) + ".scope": "",
		db + "/" + idOf(9):                            "",
		"kubepods/burstable":                          "",
		"system.slice/docker-" + idOf(1) + ".scope":   "",
	}
	for group, want := range groups {
		n, ok := d.Of(group)
		if ok != (want != "") || ok && n.String() != want {
			t.Errorf("%s is %q, %v; want %q", group, n, ok, want)
		}
	}
	if n, _ := d.Of(db + "/" + idOf(1)); n != (Name{"shop", "db-0", uid, "postgres", Burstable}) {
		t.Errorf("%+v", n)
	}
	var all []string
	for group := range groups {
		all = append(all, group)
	}
	for name, want := range map[string][]string{
		"shop/db-0": {db}, "db-0": {db}, "shop/db-0/postgres": {db + "/" + idOf(1)}, "db-0/side": {db + "/crio-" + idOf(4)},
		"batch/job.1": {job}, "shop": nil, "shop/db-1": nil, "postgres": nil, "": nil,
	} {
		if got := d.Find(name, all); !slices.Equal(got, want) {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// Entries that no kubelet writes, and those that contradict each other, name nobody.
func TestNamesRefused(t *testing.T) {
	t.Parallel()
	root := node()
	root["var/log/pods/other_db-0_"+uid+"/postgres/0.log"] = &fstest.MapFile{}        // a second pod of that UID
	root["var/log/containers/db-1_shop_postgres-"+idOf(1)+".log"] = &fstest.MapFile{} // a second name of that id
	root["var/log/containers/DB_shop_x-"+idOf(5)+".log"] = &fstest.MapFile{}          // no name of Kubernetes
	root["var/log/containers/a\x1b[2J_shop_x-"+idOf(6)+".log"] = &fstest.MapFile{}    // nor this
	root["var/log/containers/a_b_c_d-"+idOf(7)+".log"] = &fstest.MapFile{}            //
	root["run/containerd/io.containerd.runtime.v2.task/k8s.io/"+idOf(8)+"/config.json"] = &fstest.MapFile{Data: []byte("{")}
	d := open(t, root)
	for _, n := range []int{1, 5, 6, 7, 8} {
		if got, ok := d.Of(db + "/" + idOf(n)); ok {
			t.Errorf("container %d is %q", n, got)
		}
	}
	if got, ok := d.Of(db); ok {
		t.Errorf("the pod is %q", got)
	}
	if err := NewDirectory(fstest.MapFS{}).Refresh(); err != nil {
		t.Errorf("no node: %v", err)
	}
}

// What changes is seen by the next Refresh, and what does not is not read again.
func TestRefresh(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	logs := filepath.Join(root, containerLogs)
	link := func(entry string) {
		t.Helper()
		if err := os.MkdirAll(logs, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", filepath.Join(logs, entry)); err != nil {
			t.Fatal(err)
		}
	}
	link("db-0_shop_postgres-" + idOf(1) + ".log")
	d := NewDirectory(os.DirFS(root))
	now := time.Now()
	d.now = func() time.Time { return now }
	known := func(n int) bool {
		t.Helper()
		if err := d.Refresh(); err != nil {
			t.Fatal(err)
		}
		_, ok := d.Of(db + "/" + idOf(n))
		return ok
	}
	if !known(1) || known(2) {
		t.Fatal("wrong at the start")
	}
	link("db-0_shop_side-" + idOf(2) + ".log")
	if !known(2) {
		t.Error("a container that came at once is not seen")
	}
	now = now.Add(time.Minute)
	d.containers.names[idOf(3)] = Name{Namespace: "a", Pod: "b", Container: "c"}
	if !known(3) {
		t.Error("a directory that has not changed was read again")
	}
	if err := os.RemoveAll(logs); err != nil {
		t.Fatal(err)
	}
	if known(1) {
		t.Error("it is known though the files are gone")
	}
}

func FuzzEntries(f *testing.F) {
	f.Add("shop_db-0_" + uid)
	f.Add("db-0_shop_postgres-" + id + ".log")
	f.Fuzz(func(t *testing.T, entry string) {
		for _, parse := range []func(string) (string, Name, bool){podOfLog, containerOfLog} {
			if key, n, ok := parse(entry); ok && (key == "" || strings.ContainsAny(n.String(), "_ \x1b\n") || strings.Count(n.String(), "/") > 2) {
				t.Errorf("%q is %q of %q", entry, n, key)
			}
		}
	})
}

// 110 pods of two containers, as one look of the guard asks for them.
func BenchmarkLook(b *testing.B) {
	root := fstest.MapFS{}
	var groups []string
	for i := range 110 {
		pod := fmt.Sprintf("%08x-2222-3333-4444-555555555555", i)
		root[fmt.Sprintf("var/log/pods/shop_db-%d_%s/x/0.log", i, pod)] = &fstest.MapFile{}
		for j := range 2 {
			root[fmt.Sprintf("var/log/containers/db-%d_shop_c%d-%s.log", i, j, idOf(2*i+j))] = &fstest.MapFile{}
			groups = append(groups, "kubepods/burstable/pod"+pod+"/"+idOf(2*i+j))
		}
	}
	d := NewDirectory(root)
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Refresh(); err != nil {
			b.Fatal(err)
		}
		for _, group := range groups {
			if _, ok := d.Of(group); !ok {
				b.Fatal(group)
			}
		}
	}
}
