package blockio

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/cgroup"
)

// host is a tree with two disks, of which sda has partitions and BFQ, LVM and btrfs on them, a
// link by id, an overlay and a RAM disk.
func host(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sys/block/sda/dev": "8:0\n", "sys/block/sda/queue/scheduler": "none [bfq]\n",
		"sys/block/sda/sda1/dev": "8:1\n", "sys/block/sda/sda1/partition": "1\n",
		"sys/block/sda/sda2/dev": "8:2\n", "sys/block/sda/sda2/partition": "2\n",
		"sys/block/nvme0n1/dev": "259:0\n", "sys/block/nvme0n1/queue/scheduler": "[none] bfq\n",
		"sys/block/vdb/dev": "254:16\n", "sys/block/vdb/queue/scheduler": "[none]\n",
		"sys/block/dm-0/dev": "253:0\n", "sys/block/dm-0/dm/name": "data-www\n", "sys/block/dm-0/slaves/sda2": "",
		"sys/block/dm-1/dev": "253:1\n", "sys/block/dm-1/dm/name": "data--old-x\n", "sys/block/dm-1/slaves/vdb": "",
		"sys/block/etherd!e1.1/dev": "152:0\n", "sys/block/dm-2/dev": "253:2\n", "sys/block/dm-2/dm/name": "far-x\n", "sys/block/dm-2/slaves/etherd!e1.1": "",
		"sys/fs/cgroup/io.cost.qos": "259:0 enable=1 ctrl=auto\n254:16 enable=0 ctrl=auto\n",
		"srv/www/x":                 "", "mnt/pool/x": "", "var/lib/overlay/x": "", "upper/x": "", "tmp/x": "", "dev/vdb": "",
		"proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 253:0 / /srv/www rw - xfs /dev/mapper/data-www rw\n" +
			"3 1 0:40 / /mnt/pool rw - btrfs /dev/vdb rw\n4 1 0:41 / /var/lib/overlay rw - overlay overlay rw,lowerdir=/l,upperdir=/mnt/pool/up\n" +
			"5 1 0:42 / /tmp rw - tmpfs tmpfs rw\n6 1 259:0 / /mnt/pool rw - ext4 /dev/nvme0n1 rw\n7 1 0:43 / /mnt/pool rw - btrfs /dev/vdb rw\n" +
			"8 1 0:44 / /fuse rw - fuse.x /dev/* rw\n9 1 0:45 / /odd rw - btrfs /dev/* rw\n10 1 0:46 / /spaced rw - btrfs /dev/my\\040disk rw\n",
		"fuse/x": "", "odd/x": "", "spaced/x": "",
		"mnt/pool/up/x": "",
	} {
		fakekernel.Plant(t, filepath.Join(dir, name), text)
	}
	for link, to := range map[string]string{
		"dev/disk/by-id/ata-SSD_1-part2": "../../sda2", "dev/disk/by-id/nvme-SSD_2": "/dev/nvme0n1", "dev/disk/by-label/data": "../../vdb",
		"dev/my disk": "vdb", "srv/link": "/tmp",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T) *Devices {
	t.Helper()
	d, err := Read(os.DirFS(host(t)), "sys/fs/cgroup/io.cost.qos")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFind(t *testing.T) {
	t.Parallel()
	d := read(t)
	for pattern, want := range map[string]string{
		"sda": "sda", "/dev/sda": "sda", "/dev/sda2": "sda", "sd*": "sda", "/dev/[sn]*": "nvme0n1 sda", "8:2": "sda", "8:0": "sda",
		"/dev/disk/by-id/*SSD*": "nvme0n1 sda", "/dev/disk/by-id/nvme*": "nvme0n1", "/dev/mapper/data-www": "dm-0", "vg:data": "sda", "vg:data-old": "vdb", "vg:far": "etherd/e1.1",
		"/": "sda", "/home/nobody": "!no such path", "/srv/www": "dm-0", "/srv/www/x": "dm-0", "/upper": "sda",
		"/mnt/pool/x": "vdb", "/var/lib/overlay": "vdb", "/fuse/x": "!fuse.x is mounted there", "/odd": "!btrfs is mounted there", "/spaced": "vdb", "/tmp": "!tmpfs is mounted there", "/srv/link": "!is a link", "/srv/link/x": "!is a link",
		"sdz": "!no such block device", "/dev/sdz*": "!no such block device", "9:9": "!no such block device", "vg:none": "!no volume of the group",
	} {
		disks, reason := d.Find(pattern)
		var names []string
		for _, disk := range disks {
			names = append(names, disk.Name)
		}
		wrong, refused := strings.CutPrefix(want, "!")
		if refused && (len(disks) > 0 || !strings.Contains(reason, wrong)) || !refused && (strings.Join(names, " ") != want || reason != "") {
			t.Errorf("%s: %v, %q; want %s", pattern, names, reason, want)
		}
	}
	bare, err := Read(os.DirFS(t.TempDir()), "")
	if err != nil {
		t.Fatal(err)
	}
	if disks, reason := bare.Find("/srv"); len(disks) > 0 || !strings.Contains(reason, "mounts are not known") {
		t.Errorf("without mounts: %v, %q", disks, reason)
	}
}

// The agent's unit has a /dev without disks, but for the paths that it shows: those are enough for
// links of udev.
func TestUnitShowsLinks(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../packaging/systemd/berth-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := host(t)
	dev := filepath.Join(dir, "dev")
	if err := os.Rename(dev, dev+"-of-host"); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		shown, ok := strings.CutPrefix(strings.TrimSpace(line), "BindReadOnlyPaths=-/dev/")
		if !ok {
			continue
		}
		to := filepath.Join(dev, shown)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dev+"-of-host", shown), to); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(string(unit), "\nPrivateDevices=yes\n") {
		t.Error("the unit has no /dev of its own")
	}
	d, err := Read(os.DirFS(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{
		"/dev/disk/by-id/ata-*": "sda", "/dev/disk/by-id/nvme-SSD_2": "nvme0n1", "/dev/disk/by-label/data": "vdb",
		"/dev/mapper/data-www": "dm-0", "/dev/vdb": "vdb", "/dev/my disk": "",
	} {
		disks, reason := d.Find(pattern)
		var names []string
		for _, disk := range disks {
			names = append(names, disk.Name)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s: %v, %q; want %q", pattern, names, reason, want)
		}
	}
}

const own = `
classes:
  slow:
  - {weight: 20, priority: best-effort/7}
  - {devices: [sda, /dev/nvme0n1, vdb, sdz], readBPS: 50M, writeIOPS: 10k, weight: 2000, latency: 20ms}
  - {devices: [/mnt/pool], readBPS: max}
  gold: [{weight: 400}]
service: {BE: slow}
cost:
- {devices: [nvme*], readLatency: 5ms, readPercent: 95, min: 50, max: 150}
- {devices: [vdb], disable: true}
`

func TestLimits(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(own), "io.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, notes := c.Limits("slow", read(t))
	want := cgroup.Limits{IOWeight: 20, IOMax: []cgroup.IOMax{
		{Device: "254:16", ReadBPS: cgroup.Unlimited},
		{Device: "259:0", ReadBPS: 50e6, WriteIOPS: 10000, Weight: 2000, Latency: 20 * time.Millisecond},
		{Device: "8:0", ReadBPS: 50e6, WriteIOPS: 10000, BFQWeight: 1000, Latency: 20 * time.Millisecond},
	}}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := strings.Join(notes, "; "); len(notes) != 2 || !strings.Contains(text, "device sdz: no such") || !strings.Contains(text, "disk vdb: its weight is not set") {
		t.Errorf("notes: %v", notes)
	}
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	plan, notes := c.PlanCost("sys/fs/cgroup", read(t))
	const text = "echo 254:16 enable=0 > /sys/fs/cgroup/io.cost.qos  # io.cost\n" +
		"echo 259:0 enable=1 ctrl=user rpct=95.00 rlat=5000 min=50.00 max=150.00 > /sys/fs/cgroup/io.cost.qos  # io.cost\n"
	if plan.String() != text || len(notes) > 0 {
		t.Errorf("cost: %v\n%v", notes, plan)
	}
	if c.Priority("slow") != "best-effort/7" || c.Priority("gold") != "" || c.OfService("BE") != "slow" || c.OfService("LS") != "" {
		t.Errorf("priority and service: %+v", c)
	}
}

// Where the kernel has io.cost, a weight for all disks is one of BFQ's own on its disks, beside what
// a class has of such a disk, in any order of the entries.
func TestWeightOfAllOnBFQ(t *testing.T) {
	t.Parallel()
	all, disk := Entry{Weight: 80}, Entry{Devices: []string{"sda"}, ReadBPS: 60e6}
	for what, tc := range map[string]struct {
		class  Class
		weight int64
	}{
		"weight first":            {Class{all, disk}, 80},
		"throttle first":          {Class{disk, all}, 80},
		"the disk has its own":    {Class{{Devices: disk.Devices, ReadBPS: 60e6, Weight: 300}, all}, 300},
		"BFQ's weights end there": {Class{{Weight: 2000}, disk}, 1000},
	} {
		l, notes := (&Config{Classes: map[string]Class{"x": tc.class}}).Limits("x", read(t))
		want := cgroup.Limits{IOWeight: 80, IOMax: []cgroup.IOMax{{Device: "8:0", ReadBPS: 60e6, BFQWeight: tc.weight}}}
		if tc.weight == 1000 {
			want.IOWeight = 2000
		}
		if diff := cmp.Diff(want, l); diff != "" || len(notes) > 0 {
			t.Errorf("%s: notes %q (-want +got):\n%s", what, notes, diff)
		}
	}
}

// The file of the documentation of goresctrl comes to what that says of it.
func TestGoresctrl(t *testing.T) {
	t.Parallel()
	const classes = `Classes:
  LowPrioThrottled:
    - Weight: 80
    - Devices:
        - /dev/sd[a-z]
        - /dev/vd[a-z]
      ThrottleReadBps: 50M
      ThrottleWriteBps: 10M
      ThrottleReadIOPS: 10k
      ThrottleWriteIOPS: 5k
      Weight: 50
    - Devices: [/dev/disk/by-id/ata-SSD*]
      ThrottleReadBps: 100M
      ThrottleWriteBps: 40M
      Weight: 50
  HighPrioFullSpeed:
    - Weight: 400
`
	for what, text := range map[string]string{
		"goresctrl":            classes,
		"CRI Resource Manager": "policy: {Active: none}\nblockio:\n  " + strings.ReplaceAll(classes, "\n", "\n  ") + "\n",
		"in a file of Berth's": "io: {classes: {LowPrioThrottled: [{weight: 80}, {devices: [/dev/sd*, /dev/vd*], readBPS: 50M, writeBPS: 10M, readIOPS: 10k, writeIOPS: 5k, weight: 50}, {devices: [/dev/disk/by-id/ata-SSD*], readBPS: 100M, writeBPS: 40M, weight: 50}]}}",
	} {
		c, err := Parse([]byte(text), "classes.yaml")
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		l, _ := c.Limits("LowPrioThrottled", read(t))
		want := cgroup.Limits{IOWeight: 80, IOMax: []cgroup.IOMax{
			{Device: "254:16", ReadBPS: 50e6, WriteBPS: 10e6, ReadIOPS: 10000, WriteIOPS: 5000},
			{Device: "8:0", ReadBPS: 100e6, WriteBPS: 40e6, BFQWeight: 50},
		}}
		if diff := cmp.Diff(want, l); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// TestGoresctrlSample reads what goresctrl's own sample has: fields in lower case, and a class that
// says nothing.
func TestGoresctrlSample(t *testing.T) {
	t.Parallel()
	const classes = "classes:\n  slowread: [{devices: [\"/dev/[hsv]d[a-z]\"], throttlereadbps: 5M}]\n  highprio: [{weight: 400}]\n  nolimit:\n"
	for what, text := range map[string]string{"at the top": classes, "below blockio": "blockio:\n  " + strings.ReplaceAll(classes, "\n", "\n  ") + "\n"} {
		c, err := Parse([]byte(text), "sample.cfg")
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for class, want := range map[string]cgroup.Limits{
			"slowread": {IOMax: []cgroup.IOMax{{Device: "254:16", ReadBPS: 5e6}, {Device: "8:0", ReadBPS: 5e6}}},
			"highprio": {IOWeight: 400, IOMax: []cgroup.IOMax{{Device: "8:0", BFQWeight: 400}}},
			"nolimit":  {},
		} {
			l, notes := c.Limits(class, read(t))
			if diff := cmp.Diff(want, l); diff != "" || !c.Has(class) || len(notes) > 0 {
				t.Errorf("%s, %s: notes %q (-want +got):\n%s", what, class, notes, diff)
			}
		}
	}
	for text, want := range map[string]string{
		"classes: {slow: [{throttlereadbsp: 5M}]}":                      `did you mean "ThrottleReadBps"`,
		"classes: {slow: [{throttleReadBps: 5M}]}\nservice: {BE: slow}": "unknown field",
		"classes: {slow: [{Weight: 5}]}":                                `did you mean "weight"`,
	} {
		if _, err := Parse([]byte(text), "sample.cfg"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}

const koordinator = `
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
spec:
  resourceQOSStrategy:
    beClass:
      cpuQOS: {groupIdentity: -1}
      blkioQOS:
        enable: true
        blocks:
        - {name: /dev/sda, type: device, ioCfg: {readBPS: 1048576, writeIOPS: 0, ioWeightPercent: 60}}
        - {name: data-old, type: volumegroup, ioCfg: {readIOPS: 500}}
    lsClass: {blkioQOS: {enable: false, blocks: [{name: x, type: podvolume}]}}
    cgroupRoot:
      blkioQOS:
        enable: true
        blocks:
        - name: /dev/nvme0n1
          type: device
          ioCfg: {readLatency: 3000, readLatencyPercent: 95, enableUserModel: true, modelReadBPS: 1, modelWriteBPS: 2, modelReadSeqIOPS: 3, modelWriteSeqIOPS: 4, modelReadRandIOPS: 5, modelWriteRandIOPS: 6}
`

func TestKoordinator(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(koordinator), "slo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, _ := c.Limits(c.OfService("BE"), read(t))
	want := cgroup.Limits{IOMax: []cgroup.IOMax{{Device: "254:16", ReadIOPS: 500}, {Device: "8:0", ReadBPS: 1 << 20, BFQWeight: 60}}}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	plan, _ := c.PlanCost("r", read(t))
	const text = "echo 259:0 ctrl=user model=linear rbps=1 rseqiops=3 rrandiops=5 wbps=2 wseqiops=4 wrandiops=6 > /r/io.cost.model  # io.cost\n" +
		"echo 259:0 enable=1 ctrl=user rpct=95.00 rlat=3000 > /r/io.cost.qos  # io.cost\n"
	if plan.String() != text {
		t.Errorf("cost:\n%v", plan)
	}
}

func TestParseBad(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}":                                                                                                                    "there are none",
		"classes: {slow: [{}]}":                                                                                                 "it says nothing",
		"classes: {none: [{weight: 1}]}":                                                                                        "is not a name",
		"classes: {slow: [{weight: 10001}]}":                                                                                    "not 1 to 10000",
		"classes: {slow: [{readBPS: 1M}]}":                                                                                      "limits each device on its own",
		"classes: {slow: [{devices: [sda], readBPS: 0}]}":                                                                       "above 0",
		"classes: {slow: [{devices: [sda], readBPS: fast}]}":                                                                    "is no amount per second",
		"classes: {slow: [{devices: [sda], readBPS: 9999999T}]}":                                                                "is no amount per second",
		"classes: {slow: [{devices: [sda], latency: 5}]}":                                                                       "is no length of time",
		"classes: {slow: [{devices: [sda], latency: 2h}]}":                                                                      "is no length of time",
		"classes: {slow: [{devices: [a/b], weight: 1}]}":                                                                        "no absolute path",
		"classes: {slow: [{devices: [/a/../b], weight: 1}]}":                                                                    "shortest form",
		"classes: {slow: [{devices: [''], weight: 1}]}":                                                                         "names no device",
		"classes: {slow: [{devices: ['[a'], weight: 1}]}":                                                                       "syntax error",
		"classes: {slow: [{devices: ['vg:'], weight: 1}]}":                                                                      "volume group",
		"classes: {slow: [{priority: low}]}":                                                                                    "not idle",
		"classes: {slow: [{priority: idle, devices: [sda]}]}":                                                                   "one for all devices",
		"classes: {slow: [{wieght: 5}]}":                                                                                        "wieght",
		"{classes: {slow: [{weight: 5}]}, service: {XX: slow}}":                                                                 "no class of service",
		"{classes: {slow: [{weight: 5}]}, service: {BE: slwo}}":                                                                 `did you mean "slow"`,
		"{classes: {slow: [{weight: 5}]}, cost: [{}]}":                                                                          "which disks",
		"{classes: {slow: [{weight: 5}]}, cost: [{devices: [sda], min: 9, max: 5}]}":                                            "more than max",
		"{classes: {slow: [{weight: 5}]}, cost: [{devices: [sda], readPercent: 101}]}":                                          "not 0 to 100",
		"{classes: {slow: [{weight: 5}]}, cost: [{devices: [sda], model: {readBPS: 5}}]}":                                       "a model has all six",
		"Classes: {slow: [{Weight: 5, Devcies: [x]}]}":                                                                          "Devcies",
		"beClass: {blkioQOS: {enable: true, blocks: [{name: x, type: podvolume}]}}":                                             "podvolume",
		"beClass: {blkioQOS: {enable: true, blocks: [{name: x, type: device, ioCfg: {readBPS: -1}}]}}":                          "beClass.blkioQOS.blocks[0].ioCfg.readBPS: -1 is below 0",
		"beClass: {blkioQOS: {enable: true, blocks: [{name: x, type: device, ioCfg: {writeIOPS: -7}}]}}":                        "writeIOPS: -7 is below 0",
		"cgroupRoot: {blkioQOS: {enable: true, blocks: [{name: x, type: device, ioCfg: {readLatency: -3000}}]}}":                "cgroupRoot.blkioQOS.blocks[0].ioCfg.readLatency: -3000 is below 0",
		"cgroupRoot: {blkioQOS: {enable: true, blocks: [{name: x, type: device, ioCfg: {writeLatency: 1000000000000000000}}]}}": "a minute",
	} {
		if c, err := Parse([]byte(text), "f"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", text, c, err, want)
		}
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"50M": "50M", "1048576": "1Mi", "10k": "10k", "10K": "10k", "1000": "1k", "500": "500", "max": "max", "1Gi": "1Gi"} {
		var r Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r.String() != want {
			t.Errorf("%s: %s, %v", text, r, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{own, koordinator, "Classes: {a: [{Weight: 80}]}", "classes: {a: [{devices: [x], readBPS: 1e9}]}", "cost: [{devices: [a]}]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text), "f")
		if err != nil {
			return
		}
		for _, name := range c.Names() {
			d := &Devices{fsys: os.DirFS(t.TempDir()), number: map[string]string{"8:0": "sda"}, Disks: []Disk{{Name: "sda", Number: "8:0", Cost: true}}}
			if l, _ := c.Limits(name, d); l.Validate() != nil {
				t.Errorf("%s comes to %+v: %v", name, l, l.Validate())
			}
		}
	})
}
