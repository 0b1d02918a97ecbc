package vmtest

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"

	"github.com/google/go-cmp/cmp"
)

func TestCPUs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		m    Machine
		// want is each CPU's socket, core and thread, by the kernel's number.
		want [][3]int
	}{
		{"zero value", Machine{}, [][3]int{{0, 0, 0}}},
		{"by position", Machine{Sockets: 2, Threads: 2}, [][3]int{{0, 0, 0}, {0, 0, 1}, {1, 1, 0}, {1, 1, 1}}},
		{
			"first threads first", Machine{Sockets: 2, Threads: 2, Order: FirstThreadsFirst},
			[][3]int{{0, 0, 0}, {1, 1, 0}, {0, 0, 1}, {1, 1, 1}},
		},
		{
			"uneven", Machine{Cores: 3, Threads: 2, SingleThread: cpuset.MustOf(1)},
			[][3]int{{0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 2, 0}, {0, 2, 1}},
		},
	} {
		var got [][3]int
		for _, c := range tc.m.CPUs() {
			got = append(got, [3]int{c.Socket, c.Core, c.Thread})
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		m    Machine
		want string // in the error; "" for none
	}{
		{Machine{}, ""},
		{Machine{Cores: 4, Nodes: []Node{{CPUs: cpuset.MustParse("0-3")}, {}}}, ""},
		{Machine{Cores: 2, Threads: 2, SingleThread: cpuset.MustOf(1), MaxKHz: []int{2, 1}}, ""},
		{Machine{Cores: -1}, "negative"},
		{Machine{Cores: 100_000}, "out of range"},
		{Machine{Cores: 4, Nodes: []Node{{CPUs: cpuset.MustParse("0-2")}}}, "nodes have CPUs 0-2 of 0-3"},
		{Machine{Cores: 2, Nodes: []Node{{CPUs: cpuset.MustParse("0-1")}, {CPUs: cpuset.MustOf(1)}}}, "CPUs 1 are in another node"},
		{Machine{Nodes: []Node{{CPUs: cpuset.MustOf(0)}}, Distances: [][]int{{10, 20}}}, "1 rows of 1"},
		{Machine{Cores: 2, MaxKHz: []int{1}}, "1 maximum frequencies for 2"},
		{Machine{Cores: 2, Threads: 2, SingleThread: cpuset.MustOf(0)}, "single-thread cores 0"},
		{Machine{Cores: 2, Threads: 2, SingleThread: cpuset.MustOf(2)}, "not of 1 to 1"},
		{Machine{Order: "random"}, `order "random"`},
		{Machine{L3: "rack"}, `L3 per "rack"`},
		{Machine{VirtualTime: true, Instruction: 1024}, ""},
		{Machine{VirtualTime: true, Instruction: 3}, "instructions of 3 ns"},
		{Machine{Instruction: 1}, "in virtual time"},
		{Machine{Disk: &SlowDisk{MiB: 1, IOPS: 1, Depth: 4}}, ""},
		{Machine{Disk: &SlowDisk{MiB: 1, IOPS: 1, Depth: 6}}, "6 at a time"},
		{Machine{Disk: &SlowDisk{MiB: 1, Depth: 4}}, "0 operations per second"},
		{Machine{Disk: &SlowDisk{MiB: 1, IOPS: 1, Depth: 4}, VirtualTime: true}, "in virtual time"},
	} {
		err := tc.m.Validate()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("Validate(%+v) = %v, want %q in it", tc.m, err, tc.want)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	kit := &Kit{Firmware: []string{"/roms"}}
	for _, tc := range []struct {
		name string
		m    Machine
		want []string // pairs of option and value that must be there
		not  []string // options that must not
	}{
		{"flat", Machine{Cores: 8}, []string{
			"-L", "/roms", "-smp", "8,sockets=1,dies=1,cores=8,threads=1", "-m", "384", "-accel", "tcg,thread=single",
		}, []string{"-numa", "-icount"}},
		{"virtual time", Machine{VirtualTime: true}, []string{"-icount", "shift=2,sleep=off"}, nil},
		{"faster", Machine{VirtualTime: true, Instruction: 1}, []string{"-icount", "shift=0,sleep=off"}, nil},
		{"L3 per module", Machine{Modules: 2, Cores: 2, L3: PerModule}, []string{
			"-machine", "q35,smp-cache.0.cache=l3,smp-cache.0.topology=module", "-smp", "4,sockets=1,dies=1,cores=2,threads=1,modules=2",
		}, nil},
		{"nodes", Machine{
			Cores:     2,
			Nodes:     []Node{{CPUs: cpuset.MustParse("0-1"), MiB: 200}, {}},
			Distances: [][]int{{10, 17}, {17, 10}},
		}, []string{
			"-numa", "node,nodeid=0,memdev=m0,cpus=0,cpus=1", "-object", "memory-backend-ram,id=m0,size=200M",
			"-numa", "node,nodeid=1,memdev=m1", "-numa", "dist,src=0,dst=1,val=17", "-m", "392",
		}, nil},
		{"uneven", Machine{Sockets: 2, Cores: 2, Threads: 2, SingleThread: cpuset.MustOf(3)}, []string{
			"-smp", "1,maxcpus=8,sockets=2,dies=1,cores=2,threads=2",
			"-device", cpuModel + "-x86_64-cpu," + cpuFlags + ",socket-id=1,die-id=0,core-id=1,thread-id=0",
		}, nil},
		{"disk", Machine{Disk: &SlowDisk{MiB: 64, IOPS: 200, Depth: 8}}, []string{
			"-drive", "file=/proc/self/fd/7,format=raw,if=none,id=disk,throttling.iops-total=200",
			"-device", "virtio-blk-pci,drive=disk,num-queues=1,queue-size=8",
		}, nil},
		{"frequencies", Machine{MaxKHz: []int{1}}, []string{"-device", "pc-testdev"}, nil},
	} {
		args := kit.arguments(tc.m, Job{Kernel: Kernel{Image: "/vmlinuz"}, Boot: "isolcpus=1"})
		for i := 0; i < len(tc.want); i += 2 {
			if !hasPair(args, tc.want[i], tc.want[i+1]) {
				t.Errorf("%s: no %s %s in %q", tc.name, tc.want[i], tc.want[i+1], args)
			}
		}
		for _, option := range tc.not {
			if slices.Contains(args, option) {
				t.Errorf("%s: %s in %q", tc.name, option, args)
			}
		}
		if !hasPair(args, "-append", bootArgs+" isolcpus=1") {
			t.Errorf("%s: the job's boot arguments are not in %q", tc.name, args)
		}
	}
	known := &Kit{TSCKHz: 2_500_000}
	if args := known.arguments(Machine{}, Job{}); !hasPair(args, "-append", bootArgs+" tsc_early_khz=2500000") {
		t.Errorf("no frequency of the counter in %q", args)
	}
	if args := known.arguments(Machine{VirtualTime: true}, Job{}); !hasPair(args, "-append", bootArgs) {
		t.Errorf("in virtual time the counter is not the host's: %q", args)
	}
	if args := kit.arguments(Machine{}, Job{Disk: "/disk"}); !hasPair(args, "-drive", "file=/disk,format=raw,if=virtio,snapshot=on") {
		t.Errorf("no disk in %q", args)
	}
	uneven := Machine{Cores: 2, Threads: 2, SingleThread: cpuset.MustOf(1)}
	for _, arg := range kit.arguments(uneven, Job{}) {
		if strings.HasSuffix(arg, "core-id=1,thread-id=1") {
			t.Errorf("the missing thread is plugged in: %s", arg)
		}
	}
}

func hasPair(args []string, option, value string) bool {
	for i := range args[1:] {
		if args[i] == option && args[i+1] == value {
			return true
		}
	}
	return false
}

func TestTables(t *testing.T) {
	t.Parallel()
	m := Machine{Cores: 2, Threads: 2, Order: FirstThreadsFirst, MaxKHz: []int{4_000_000, 2_000_000}}
	tables := m.tables()
	if len(tables) != 2 || len(Machine{}.tables()) != 0 {
		t.Fatalf("%d tables, want 2, and %d of a plain machine", len(tables), len(Machine{}.tables()))
	}
	for name, table := range tables {
		var sum byte
		for _, b := range table {
			sum += b
		}
		length := int(table[4]) | int(table[5])<<8
		if sum != 0 || length != len(table) {
			t.Errorf("%s: bytes add up to %d, length %d of %d", name, sum, length, len(table))
		}
	}
	// APIC IDs in the order of the kernel's numbers.
	var ids []byte
	madt := tables[acpiDir+"apic.aml"]
	for i := range 4 {
		ids = append(ids, madt[36+8+8*i+3])
	}
	if want := []byte{0, 2, 1, 3}; !slices.Equal(ids, want) {
		t.Errorf("APIC IDs %v, want %v", ids, want)
	}
}
