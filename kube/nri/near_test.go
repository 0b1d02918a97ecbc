package nri

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// nearHost lays devices into the root of a played host: a network card's char device 10:1 and a
// disk 8:0 with a partition on node 1, 253:0 of the device mapper on that disk, one card on node
// 0, one of no node, and one of a node that is not there.
func nearHost(t *testing.T, root string) {
	t.Helper()
	file := func(name, text string) {
		name = filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	link := func(name, to string) {
		name = filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.Symlink(to, name))
	}
	for slot, node := range map[string]string{"0": "0", "1": "1", "2": "-1", "9": "9"} {
		file("sys/devices/pci0/"+slot+"/numa_node", node+"\n")
		file("sys/devices/pci0/"+slot+"/misc/card/dev", "10:"+slot+"\n")
		link("sys/dev/char/10:"+slot, "../../devices/pci0/"+slot+"/misc/card")
	}
	file("sys/devices/pci0/1/block/sda/sda1/partition", "1\n")
	link("sys/dev/block/8:0", "../../devices/pci0/1/block/sda")
	link("sys/dev/block/8:1", "../../devices/pci0/1/block/sda/sda1")
	link("sys/dev/block/253:0", "../../devices/virtual/block/dm-0")
	link("sys/devices/virtual/block/dm-0/slaves/sda1", "../../../../pci0/1/block/sda/sda1")
	link("sys/dev/char/1:3", "../../devices/virtual/mem/null")
	file("sys/devices/virtual/mem/null/dev", "1:3\n")
	file("proc/1/mountinfo", `1 0 0:30 / / rw - overlay overlay rw
2 1 8:1 / /data rw - ext4 /dev/sda1 rw
3 2 253:0 / /data/mapped rw - xfs /dev/mapper/x rw
4 2 0:99 / /data/nfs rw - nfs4 server:/x rw
5 1 8:1 / /var/lib rw - ext4 /dev/sda1 rw
6 1 0:25 / /run rw - tmpfs tmpfs rw
`)
}

// A container comes from the NUMA nodes of its devices and mounts where its pod asks for it.
func TestNear(t *testing.T) {
	t.Parallel()
	char := func(minor int64) *api.LinuxDevice {
		return &api.LinuxDevice{Path: "/dev/card" + string(rune('0'+minor)), Type: "c", Major: 10, Minor: minor}
	}
	null := &api.LinuxDevice{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}
	bind := func(source string) *api.Mount {
		return &api.Mount{Destination: "/x", Source: source, Type: "bind"}
	}
	with := func(m *api.Mount) []*api.Mount { return append(everyContainers(), m) }
	for name, c := range map[string]struct {
		words   map[string]string
		devices []*api.LinuxDevice
		mounts  []*api.Mount
		want    string // NUMA nodes of its CPUs
		source  string
		problem string
	}{
		"nothing said":       {nil, []*api.LinuxDevice{char(1)}, nil, "0", "", ""},
		"device":             {map[string]string{"topologyhints": "true"}, []*api.LinuxDevice{null, char(1)}, nil, "1", ": 1 of its", ""},
		"whole disk":         {map[string]string{"topologyhints": "devices"}, []*api.LinuxDevice{{Path: "/dev/sda", Type: "b", Major: 8}}, nil, "1", ": 1 of its", ""},
		"mount":              {map[string]string{"topologyhints": "true"}, nil, []*api.Mount{bind("/data/db")}, "1", ": 1 of its", ""},
		"mapped mount":       {map[string]string{"topologyhints": "mounts"}, nil, []*api.Mount{bind("/data/mapped/../mapped/db")}, "1", ": 1 of its", ""},
		"no block device":    {map[string]string{"topologyhints": "true"}, nil, []*api.Mount{bind("/data/nfs/db"), bind("/etc"), bind("../data"), {Type: "proc", Source: "/data"}}, "0", "", ""},
		"of every container": {map[string]string{"topologyhints": "true"}, nil, everyContainers(), "0", "", ""},
		"empty directory":    {map[string]string{"topologyhints": "true"}, nil, with(kubeletMount("/cache", "volumes/kubernetes.io~empty-dir/cache", "rw")), "1", ": 1 of its", ""},
		"of the host":        {map[string]string{"topologyhints": "true"}, nil, with(&api.Mount{Destination: "/library", Source: "/var/lib/db", Type: "bind", Options: []string{"rbind", "rprivate", "rw"}}), "1", ": 1 of its", ""},
		"read only":          {map[string]string{"topologyhints": "true"}, nil, []*api.Mount{{Destination: "/x", Source: "/data/db", Type: "bind", Options: []string{"rbind", "rprivate", "ro"}}}, "0", "", ""},
		"read only, allowed": {map[string]string{"topologyhints": "true", "allow.topologyhints": "{paths: [/]}"}, nil, []*api.Mount{{Destination: "/x", Source: "/data/db", Type: "bind", Options: []string{"ro"}}}, "0", "", ""},
		"denied where it is": {map[string]string{"deny.topologyhints": "{paths: [/x]}"}, nil, []*api.Mount{bind("/data/db")}, "0", "", ""},
		"denied hardware":    {map[string]string{"deny.topologyhints": "{paths: [/sys/devices/pci0/1/]}"}, []*api.LinuxDevice{char(1)}, nil, "0", "", ""},
		"one disk of all":    {map[string]string{"deny.topologyhints": "{paths: [/]}", "allow.topologyhints": "{type: glob, paths: ['/sys/devices/pci0/1/block/*/sda1']}"}, []*api.LinuxDevice{char(0)}, []*api.Mount{bind("/data/db")}, "1", ": 1 of its", ""},
		"devices only":       {map[string]string{"topologyhints": "devices"}, nil, []*api.Mount{bind("/data/db")}, "0", "", ""},
		"denied":             {map[string]string{"deny.topologyhints": "{paths: [/dev/card]}"}, []*api.LinuxDevice{char(1)}, nil, "0", "", ""},
		"of no node":         {map[string]string{"strict.topologyhints": "true"}, []*api.LinuxDevice{char(2)}, nil, "0", "", ""},
		"of a missing node":  {map[string]string{"strict.topologyhints": "true"}, []*api.LinuxDevice{char(9)}, nil, "0", "", ""},
		"picked":             {map[string]string{"pick-resources-by-hints": "true"}, []*api.LinuxDevice{char(1)}, nil, "1", ": 1 of its", ""},
		"picked of two":      {map[string]string{"pick-resources-by-hints": "true"}, []*api.LinuxDevice{char(0), char(1)}, nil, "0", ": 2 of its", "not divided"},
		"named":              {map[string]string{"topologyhints": "true", "numa": "0"}, []*api.LinuxDevice{char(1)}, nil, "0", "annotation berth.dev/numa", "this wins"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt, heard := options(t, "2s1n4c2t")
			nearHost(t, opt.Node.Root.Name())
			p := open(t, opt)
			q := pod("web", nearWords(c.words))
			box := container(q, "a", 2000)
			box.Linux.Devices, box.Mounts = c.devices, c.mounts
			adjust, _, err := p.CreateContainer(context.Background(), q, box)
			must(t, err)
			s, err := p.node.State(context.Background())
			must(t, err)
			if got := s.Topology().NodesOf(cpuset.MustParse(adjust.GetLinux().GetResources().GetCpu().GetCpus())); got.String() != c.want {
				t.Errorf("CPUs of nodes %s, want %s", got, c.want)
			}
			w, err := p.node.Get(context.Background(), "default/web/a")
			must(t, err)
			if from := w.Spec.Annotations[agent.SourcePrefix+"nodes"]; !strings.Contains(from, c.source) || (from == "") != (c.source == "") {
				t.Errorf("source %q, want %q", from, c.source)
			}
			problems := strings.Join(heard.kinds(Word), "\n")
			if !strings.Contains(problems, c.problem) || (problems == "") != (c.problem == "") {
				t.Errorf("problems %q, want %q", problems, c.problem)
			}
		})
	}
}

// kubeletMount is a mount of the kubelet's directory of the pod web.
func kubeletMount(to, of, access string) *api.Mount {
	return &api.Mount{Destination: to, Source: "/var/lib/kubelet/pods/uid-web/" + of, Type: "bind", Options: []string{"rbind", "rprivate", access}}
}

// everyContainers are the mounts that a container of the pod web has besides its own: those of
// containerd, of the kubelet, and of volumes that are not data.
func everyContainers() []*api.Mount {
	all := []*api.Mount{
		{Destination: "/proc", Source: "proc", Type: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Source: "tmpfs", Type: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Source: "devpts", Type: "devpts", Options: []string{"nosuid", "noexec"}},
		{Destination: "/dev/mqueue", Source: "mqueue", Type: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Source: "sysfs", Type: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Source: "cgroup", Type: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		{Destination: "/dev/shm", Source: "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/0f/shm", Type: "bind", Options: []string{"rbind", "rprivate", "rw"}},
		kubeletMount("/etc/hosts", "etc-hosts", "rw"),
		kubeletMount("/dev/termination-log", "containers/a/0c5f36a1", "rw"),
		kubeletMount("/var/log/last", "containers/a/0c5f36a1", "rw"), // where terminationMessagePath says so
		kubeletMount("/var/run/secrets/kubernetes.io/serviceaccount", "volumes/kubernetes.io~projected/kube-api-access-x7k2p", "ro"),
	}
	for _, file := range []string{"hostname", "resolv.conf"} {
		all = append(all, &api.Mount{Destination: "/etc/" + file, Source: "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/0f/" + file, Type: "bind", Options: []string{"rbind", "rprivate", "rw"}})
	}
	for _, kind := range []string{"configmap", "secret", "projected", "downward-api"} {
		all = append(all, kubeletMount("/srv/"+kind, "volumes/kubernetes.io~"+kind+"/v", "rw"))
	}
	for _, to := range []string{"/lib/modules", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/ssl"} {
		all = append(all, &api.Mount{Destination: to, Source: "/var/lib/host" + to, Type: "bind", Options: []string{"rbind", "rprivate", "rw"}})
	}
	return all
}

// nearWords are words of nri-plugins and Berth for a pod with cores of its own.
func nearWords(words map[string]string) map[string]string {
	all := maps.Clone(exclusive)
	for word, text := range words {
		if word == "numa" {
			all["berth.dev/"+word] = text
		} else {
			all[word+".resource-policy.nri.io"] = text
		}
	}
	return all
}

// A container that makes it a condition is refused where its devices' node is full, and another
// gets CPUs elsewhere.
func TestNearRequired(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for strict, refused := range map[string]bool{"true": true, "false": false} {
		opt, _ := options(t, "2s1n4c2t")
		nearHost(t, opt.Node.Root.Name())
		p := open(t, opt)
		create := func(name string, milli int) error {
			words := nearWords(map[string]string{"topologyhints": "true", "strict.topologyhints": strict})
			delete(words, "berth.dev/class") // by which a place of its own would be required anyway
			q := guaranteed(pod(name, words))
			c := container(q, "a", milli)
			c.Linux.Devices = []*api.LinuxDevice{{Path: "/dev/card1", Type: "c", Major: 10, Minor: 1}}
			_, _, err := p.CreateContainer(ctx, q, c)
			return err
		}
		must(t, create("first", 6000))
		if err := create("second", 4000); (err != nil) != refused {
			t.Errorf("strict %s: %v", strict, err)
		}
	}
}

// Where the mounts of the host cannot be read, a container runs that does not make it a condition.
func TestNearUnknown(t *testing.T) {
	t.Parallel()
	for strict, refused := range map[string]bool{"true": true, "false": false} {
		opt, heard := options(t, "2s1n4c2t")
		nearHost(t, opt.Node.Root.Name())
		must(t, os.WriteFile(filepath.Join(opt.Node.Root.Name(), "proc/1/mountinfo"), []byte("1 0\n"), 0o644))
		p := open(t, opt)
		words := nearWords(map[string]string{"topologyhints": "true", "strict.topologyhints": strict})
		delete(words, "berth.dev/class")
		q := guaranteed(pod("web", words))
		c := container(q, "a", 2000)
		c.Mounts = []*api.Mount{{Destination: "/x", Source: "/data/db", Type: "bind"}}
		_, _, err := p.CreateContainer(context.Background(), q, c)
		told := strings.Join(heard.kinds(map[bool]string{true: Rejected, false: Word}[refused]), "\n")
		if (err != nil) != refused || !strings.Contains(told, "topologyhints.resource-policy.nri.io: \"\": not followed: where its devices and mounts are is not known") {
			t.Errorf("strict %s: %v; told %q", strict, err, told)
		}
	}
}

// A pod that is placed as a whole has its places before the devices of any but its first container
// are known: a place that is on other nodes is told, or refused where they are a condition.
func TestNearWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		words         map[string]string
		first, second int64 // the nodes of their devices; -1 is none
		nodes         string
		problem       bool
		source        string // of the second's nodes
		refused       bool
	}{
		"no device":         {map[string]string{"topologyhints": "true"}, 1, -1, "0", false, "", false},
		"elsewhere":         {map[string]string{"topologyhints": "true"}, 0, 1, "0", true, "", false},
		"strict elsewhere":  {map[string]string{"topologyhints": "true", "strict.topologyhints": "true"}, 0, 1, "0", true, "", true},
		"it is there":       {map[string]string{"topologyhints": "true", "strict.topologyhints": "true"}, -1, 0, "0", false, ": 1 of its", false},
		"named by the pod":  {map[string]string{"numa": "1"}, -1, -1, "1", false, "annotation berth.dev/numa", false},
		"nothing is wanted": {nil, 1, 1, "0", false, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			opt, heard := options(t, "2s1n4c2t")
			nearHost(t, opt.Node.Root.Name())
			server := known{}
			opt.Pods = server
			p := open(t, opt)
			q := server.of("web", needs("a", place.App, 2000), needs("b", place.App, 2000))
			q.Annotations = nearWords(c.words)
			q.Annotations["berth.dev/scope"] = "pod"
			create := func(name string, node int64) error {
				box := container(q, name, 2000)
				if node >= 0 {
					box.Linux.Devices = cards(node)
				}
				_, _, err := p.CreateContainer(ctx, q, box)
				return err
			}
			must(t, create("a", c.first))
			if err := create("b", c.second); (err != nil) != c.refused {
				t.Errorf("refused: %v, want %v", err, c.refused)
			}
			if c.refused { // and where it runs already, too late to refuse it
				running := container(q, "b", 2000)
				running.State, running.Linux.Devices = api.ContainerState_CONTAINER_RUNNING, cards(c.second)
				_, err := p.Synchronize(ctx, []*api.PodSandbox{q}, []*api.Container{running})
				must(t, err)
				if told := heard.kinds(Fallback); len(told) != 1 || !strings.Contains(told[0], "in the shared pool: ") {
					t.Errorf("%q", told)
				}
			}
			w, err := p.node.Get(ctx, "default/web/b")
			must(t, err)
			s, err := p.node.State(ctx)
			must(t, err)
			if got := s.Topology().NodesOf(w.Grant.Own).String(); got != c.nodes {
				t.Errorf("CPUs of nodes %s, want %s", got, c.nodes)
			}
			if from := w.Spec.Annotations[agent.SourcePrefix+"nodes"]; !strings.Contains(from, c.source) || (from == "") != (c.source == "") {
				t.Errorf("source %q, want %q", from, c.source)
			}
			problems := strings.Join(heard.kinds(Word), "\n")
			want := `topologyhints.resource-policy.nri.io: "1": not followed: its pod was placed as a whole`
			if strings.Contains(problems, want) != c.problem || (problems == "") == c.problem {
				t.Errorf("problems %q", problems)
			}
		})
	}
}

// cards are the network card of a node.
func cards(node int64) []*api.LinuxDevice {
	return []*api.LinuxDevice{{Path: "/dev/card", Type: "c", Major: 10, Minor: node}}
}
