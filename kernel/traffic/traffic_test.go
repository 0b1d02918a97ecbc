package traffic_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
)

// played is a root with eth0, a card of 1 Gbit/s with 4 queues, lo, dum0, which is virtual, and
// eth1, which tells no speed.
func played(t testing.TB) (*kernel.Root, *fakenet.Network) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"class/net/eth0/speed": "1000\n", "class/net/eth0/type": "1\n", "class/net/eth0/device/x": "",
		"class/net/eth0/queues/tx-0/x": "", "class/net/eth0/queues/tx-1/x": "", "class/net/eth0/queues/tx-2/x": "", "class/net/eth0/queues/tx-3/x": "",
		"class/net/lo/type": "772\n", "class/net/dum0/speed": "10000\n", "class/net/eth1/speed": "-1\n", "class/net/eth1/device/x": "",
		"fs/cgroup/web/cgroup.procs": "", "kernel/x": "",
	} {
		name = filepath.Join(dir, "sys", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	boot := filepath.Join(dir, "proc/sys/kernel/random/boot_id")
	if err := errors.Join(os.MkdirAll(filepath.Dir(boot), 0o755), os.WriteFile(boot, []byte("boot\n"), 0o644),
		os.MkdirAll(filepath.Join(dir, "proc/self"), 0o755), os.WriteFile(filepath.Join(dir, "proc/self/mountinfo"), []byte("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	net := fakenet.New(root.FS(), "eth0", "lo", "dum0", "eth1")
	return traffic.Lay(root, net), net
}

func parse(t testing.TB, text string) (*traffic.Config, error) {
	t.Helper()
	c := &traffic.Config{}
	if _, err := strictyaml.Decode([]byte(text), "net.yaml", c); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

func layout(t testing.TB, root *kernel.Root, c *traffic.Config) *traffic.Layout {
	t.Helper()
	h, err := traffic.Read(root.FS(), c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Layout(h)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPlan(t *testing.T) {
	t.Parallel()
	root, _ := played(t)
	c, err := parse(t, "{devices: {eth0: {}}, classes: {fast: {floor: 190Mbit, priority: 1}, bulk: {floor: 10%, ceiling: 2Gbit, priority: 8}}}")
	if err != nil {
		t.Fatal(err)
	}
	l := layout(t, root, c)
	got := l.Plan().String()
	want := `mkdir /sys/net/eth0/htb  # HTB at the root of eth0, link 950Mbit
echo rate 118750000 ceil 118750000 prio 0 > /sys/net/eth0/htb/0001  # the whole link
echo rate 83125000 ceil 118750000 prio 3 > /sys/net/eth0/htb/0002  # all without a network class
echo rate 23750000 ceil 118750000 prio 0 > /sys/net/eth0/htb/553f  # network class fast
echo rate 11875000 ceil 118750000 prio 7 > /sys/net/eth0/htb/db3d  # network class bulk
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if notes := l.Links[0].Notes; len(notes) != 1 || !strings.HasPrefix(notes[0], "eth0 sends through 4 queues, and HTB through one lock") {
		t.Errorf("notes %q", notes)
	}
}

// Floors may take the whole link: what has none is given the least that HTB knows.
func TestWholeLink(t *testing.T) {
	t.Parallel()
	root, _ := played(t)
	for text, want := range map[string]traffic.Class{
		"{devices: {eth0: {rate: 80Mbit}}, classes: {a: {floor: 60%}, b: {floor: 40%}, c: {priority: 1}}}":         {Rate: 1000, Ceil: 10e6, Prio: 3},
		"{devices: {eth0: {rate: 80Mbit}}, classes: {a: {floor: 60%}, c: {priority: 1}}, others: {floor: 32Mbit}}": {Rate: 4e6, Ceil: 10e6, Prio: 3},
	} {
		c, err := parse(t, text)
		if err != nil {
			t.Fatal(err)
		}
		l := layout(t, root, c)
		if got := l.Links[0].Find(l, traffic.Others); got != want {
			t.Errorf("%s: others have %v, want %v", text, got, want)
		}
	}
}

// All that is wrong is told at once, each with its field.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	net.Plug("eth9")
	net.Put("eth9", traffic.Qdisc{Kind: "fq_codel", Handle: 0x80010000})
	for text, want := range map[string][]string{
		"{}": {"devices: there are none", "classes: there are none"},
		"classes: {a: {receive: 20Mbit}, b: {receive: 20Mbit, priority: 2}}": {"devices: there are none"},
		"classes: {a: {receive: 20Mbit}}\nothers: {priority: 2}":             {"devices: there are none"},
		"{devices: {eth0: {rate: 0Mbit}}, classes: {a: {floor: 1Mb, ceiling: 0%}}}": {
			`"0Mbit" is no rate from 8kbit to 10Tbit`, `"1Mb" is no rate`, `"0%" is not above 0%`,
		},
		"{devices: {a/b: {}, eth0: {}}, classes: {none: {priority: 1}, others: {priority: 9}, x: {}}, service: {BE: y, XX: x}}": {
			`devices.a/b: "a/b" is not the name`, `classes.none: "none" is not a name`, `classes.others: "others" is not a name`, "classes.others.priority: 9 is not 1 (first) to 8",
			"classes.x: it says nothing", `service.BE: there is no class "y"`, `service.XX: "XX" is no class of service`,
		},
		"{devices: {eth0: {}}, classes: {a: {floor: 60%}, b: {floor: 50%, ceiling: 40%}, c: {floor: 2Mbit, ceiling: 1Mbit}}}": {
			"classes: the floors add up to 110% of a link", "classes.b.ceiling: 40% is below the floor, 50%", "classes.c.ceiling: 1Mbit is below the floor, 2Mbit",
		},
		"{devices: {eth0: {}, eht1: {}, lo: {}, dum0: {}, eth1: {}, eth9: {}}, classes: {a: {floor: 600Mbit}, b: {floor: 400Mbit}}}": {
			"devices.eth0: the floors add up to 1Gbit, more than the 950Mbit of eth0", `devices.eht1: there is no network device "eht1"; did you mean "eth1"?`,
			"devices.lo: lo is the loopback device", "devices.dum0: dum0 is a virtual device", "devices.eth1: eth1 does not say how fast",
			`devices.eth9: eth9 has a root queueing discipline of somebody else's, "fq_codel 8001:", which is not replaced: remove it (tc qdisc del dev eth9 root)`,
		},
		`classes: {a: {receiveFrom: eth0}, b: {receive: 1Mbit, receiveFrom: "eth0:1"}, c: {receive: 1Mbit, receiveFrom: ""}}`: {
			`"eth0:1" is not the name of a network device`, "no network device is named",
		},
		"{classes: {a: {receiveFrom: eth0}, b: {receive: 1Mbit}}, others: {receiveFrom: eth0}}": {
			"classes.a.receiveFrom: nothing is limited there: say receive or receiveTogether", "others.receive: what everybody else receives",
		},
		"{classes: {a: {receive: 1Mbit, receiveFrom: eth0 eht1}, b: {receiveTogether: 1Mbit, receiveFrom: lo}}}": {
			`classes.a.receiveFrom: class a: there is no network device "eht1"; did you mean "eth1"?: what arrives is counted once there is`,
			"classes.b.receiveFrom: class b: lo is the loopback device",
		},
		"{devices: {eth0: {rate: 10Mbit}}, classes: {a: {floor: 50%, ceiling: 4Mbit}}}":            {"classes.a: on eth0: the floor, 5Mbit, is above the ceiling, 4Mbit"},
		"{devices: {eth0: {rate: 10Mbit}}, classes: {a: {floor: 11Mbit}}}":                         {"classes.a: on eth0: the floor, 11Mbit, is more than the link's 10Mbit"},
		"{devices: {eth0: {rate: 10Mbit}}, classes: {a: {floor: 1Mbit}}, others: {floor: 20Mbit}}": {"others: on eth0: the floor, 20Mbit, is more than"},
	} {
		c, err := parse(t, text)
		if err == nil {
			h, readErr := traffic.Read(root.FS(), c)
			if readErr != nil {
				t.Fatal(readErr)
			}
			_, err = c.Layout(h)
			err = errors.Join(err, c.Absent(h, c.Names()...))
		}
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", text, err, w)
			}
		}
	}
}

// A class is of what its workloads send only where it says so.
func TestReceiveFrom(t *testing.T) {
	t.Parallel()
	root, _ := played(t)
	c, err := parse(t, "classes: {a: {receive: 1Mbit, receiveFrom: eth1 eth0}, b: {receive: 1Mbit, receiveTogether: 2Mbit}, c: {receiveTogether: 2Mbit, receiveFrom: eth0}}")
	if err != nil {
		t.Fatal(err)
	}
	h, err := traffic.Read(root.FS(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Absent(h, c.Names()...); err != nil || c.Divides("a") || c.Divides("c") {
		t.Errorf("%v, %v, %v", err, c.Divides("a"), c.Divides("c"))
	}
	for class, want := range map[string]traffic.Limit{"a": {Arrival: traffic.Arrival{Devices: "eth0/eth1", Rate: 1e6}}, "b": {Receive: 1e6}, "c": {}} {
		if got := c.ReceiveOf(class); got != want {
			t.Errorf("%s: %+v, want %+v", class, got, want)
		}
	}
	for class, want := range map[string]traffic.Together{"a": {}, "b": {Rate: 2e6}, "c": {Rate: 2e6, Devices: "eth0"}} {
		if got := c.TogetherOf(class); got.Rate != want.Rate || got.Devices != want.Devices || (got.Class == 0) != (want.Rate == 0) {
			t.Errorf("%s: %+v, want %+v", class, got, want)
		}
	}
	if got := (*traffic.Config)(nil).FromOf("a"); got != "" {
		t.Errorf("without classes: %q", got)
	}
}

// A configuration that was applied has nothing left to do, one with a class changed changes
// that class and the rest of the link, and all is undone as it was found.
func TestApplied(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		root, net := played(t)
		log, err := kernel.CreateUndoLog(root, t.TempDir()+"/log", "test")
		if err != nil {
			t.Fatal(err)
		}
		c := &traffic.Config{Devices: map[string]traffic.LinkConfig{"eth0": {}, "dum0": {Rate: traffic.Rate(1e6 * (1 + rng.IntN(1e5)))}}, Classes: map[string]traffic.Share{}}
		share := func() traffic.Share {
			floor := 1 + rng.Float64()*9
			return traffic.Share{Floor: traffic.Amount{Percent: floor}, Ceiling: traffic.Amount{Percent: floor + rng.Float64()*90}, Priority: 1 + rng.IntN(8)}
		}
		for i := range 1 + rng.IntN(9) {
			c.Classes[fmt.Sprint("c", i)] = share()
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			plan := layout(t, root, c).Plan()
			if _, err := kernel.Apply(root, plan, log); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, plan)
			}
			l := layout(t, root, c)
			if plan := l.Plan(); len(plan) > 0 {
				t.Fatalf("seed %d: left to do:\n%s", seed, plan)
			}
			for _, k := range l.Links {
				var sum uint64
				for minor, class := range k.Classes {
					if minor != 1 {
						sum += class.Rate
					}
				}
				if sum > k.Classes[1].Rate {
					t.Fatalf("seed %d: floors of %d on a link of %d", seed, sum, k.Classes[1].Rate)
				}
			}
			c.Classes["c0"] = share()
			if plan := layout(t, root, c).Plan(); len(plan) > 4 {
				t.Fatalf("seed %d: a change of one class is\n%s", seed, plan)
			}
		}
		if _, err := log.Undo(func(kernel.Step) bool { return true }); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"eth0", "dum0"} {
			if q, _ := net.Of(name); q.Kind != "pfifo_fast" {
				t.Fatalf("seed %d: %s has %v", seed, name, q)
			}
		}
	}
}

// Where ceilings are enough, a device keeps its fq, whoever put it there, and a program says when
// packets leave. Floors and priorities are HTB's, for which somebody else's fq makes no room.
func TestDepartureTimes(t *testing.T) {
	t.Parallel()
	const ceilings, floors = "ceiling: 50%", "floor: 10%, ceiling: 50%"
	const edt = `mkdir /sys/net/eth0/edt  # eth0 tells its fq when packets leave, link 950Mbit
echo rate 118750000 ceil 118750000 prio 0 > /sys/net/eth0/edt/0001  # the whole link
echo rate 1000 ceil 59375000 prio 3 > /sys/net/eth0/edt/db3d  # network class bulk
`
	theirs, normal := traffic.Qdisc{Kind: "fq", Handle: 0x80010000, Paces: true}, traffic.Qdisc{Kind: "fq", Paces: true}
	for what, tc := range map[string]struct {
		root         traffic.Qdisc
		bulk, others string
		want         string // what the plan has, or the error
	}{
		"somebody's fq":            {theirs, ceilings, "", edt},
		"the kernel's fq":          {normal, ceilings, "", edt},
		"somebody's mq of fq":      {traffic.Qdisc{Kind: "mq", Handle: 0x80010000, Paces: true}, ceilings, "", edt},
		"others have a ceiling":    {theirs, ceilings, "ceiling: 20%", "mkdir /sys/net/eth0/edt"},
		"priorities":               {theirs, "priority: 8", "", `eth0 has "fq 8001:", put there by somebody else`},
		"floors, somebody's fq":    {theirs, floors, "", "has neither floors nor priorities: leave those out of the classes and say ceilings alone, or remove it (tc qdisc del dev eth0 root)"},
		"a floor of others":        {theirs, ceilings, "floor: 20%", "has neither floors nor priorities"},
		"floors, the kernel's fq":  {normal, floors, "", "mkdir /sys/net/eth0/htb"},
		"an fq of an older kernel": {traffic.Qdisc{Kind: "fq", Handle: 0x80010000}, ceilings, "", `eth0 has a root queueing discipline of somebody else's, "fq 8001:"`},
		"no fq":                    {traffic.Qdisc{Kind: "pfifo_fast"}, ceilings, "", "mkdir /sys/net/eth0/htb"},
	} {
		root, net := played(t)
		net.Put("eth0", tc.root)
		c, err := parse(t, fmt.Sprintf("{devices: {eth0: {}}, classes: {bulk: {%s}}, others: {%s}}", tc.bulk, tc.others))
		if err != nil {
			t.Fatal(err)
		}
		h, err := traffic.Read(root.FS(), c)
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Layout(h)
		got := l.Plan().String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tc.want) || tc.want == edt && got != edt {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, tc.want)
		}
		if err != nil {
			continue
		}
		log, err := kernel.CreateUndoLog(root, t.TempDir()+"/log", "test")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kernel.Apply(root, l.Plan(), log); err != nil {
			t.Fatal(err)
		}
		l = layout(t, root, c)
		bulk, others := l.Links[0].Find(l, "bulk").Ceiling(), l.Links[0].Find(l, traffic.Others).Ceiling()
		if plan := l.Plan(); len(plan) > 0 || !l.Links[0].InForce(l, "bulk") || !l.Links[0].InForce(l, traffic.Others) || bulk != 475e6 || (others == 190e6) != (tc.others != "") {
			t.Errorf("%s, applied: left to do:\n%sbulk has %v, others %v", what, plan, bulk, others)
		}
		if edt := strings.Contains(tc.want, "edt"); (net.PacedBy("eth0") != nil) != edt || (l.By("eth0") == traffic.EDT) != edt {
			t.Errorf("%s: divided by %q, classes of EDT %v", what, l.By("eth0"), net.PacedBy("eth0"))
		}
		if _, err := log.Undo(func(kernel.Step) bool { return true }); err != nil {
			t.Error(err)
		}
		q, _ := net.Of("eth0")
		if normal := (traffic.Qdisc{Kind: "pfifo_fast"}); q != tc.root && q != normal || net.PacedBy("eth0") != nil {
			t.Errorf("%s, undone: %v, %v", what, q, net.PacedBy("eth0"))
		}
	}
}

// What divides a device, or can, is told in words.
func TestMeans(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]traffic.Device{
		"ceilings by fq, floors and priorities by HTB":                      {Root: "fq 0:", Paces: true},
		"ceilings by fq; no floors or priorities, as it is somebody else's": {Root: "fq 8001:", Paces: true},
		"floors, ceilings and priorities by HTB":                            {Root: "htb 6be7:", By: traffic.HTB},
		`not to be divided, as "fq 8001:" is somebody else's`:               {Root: "fq 8001:"},
	} {
		if got := d.Means(); got != want {
			t.Errorf("%+v: %s", d, got)
		}
	}
}

// A class that is no more, and the ceiling of others, go from a device without its other classes;
// the guard's stay, with a ceiling of their own.
func TestDepartureTimesChange(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	net.Put("eth0", traffic.Qdisc{Kind: "fq", Handle: 0x80010000, Paces: true})
	at := func(text string) *traffic.Layout {
		t.Helper()
		c, err := parse(t, text)
		if err != nil {
			t.Fatal(err)
		}
		return layout(t, root, c)
	}
	if _, err := kernel.Apply(root, at("{devices: {eth0: {}}, classes: {a: {ceiling: 10%}, b: {ceiling: 20%}}, others: {ceiling: 30%}}").Plan(), nil); err != nil {
		t.Fatal(err)
	}
	h, err := traffic.Read(root.FS(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := h.Devices["eth0"]; d.By != traffic.EDT || d.Class(0).Ceiling() != 285e6 || d.Class(0xfff1).Ceiling() != 285e6 {
		t.Errorf("without a class: %v by %q", d.Class(0), d.By)
	}
	if _, err := kernel.Apply(root, h.Lower("sys/fs/cgroup/web", 0, 0xfff0, "eth0", 1e6), nil); err != nil {
		t.Fatal(err)
	}
	plan := at("{devices: {eth0: {}}, classes: {a: {ceiling: 10%}}}").Plan()
	if _, err := kernel.Apply(root, plan, nil); err != nil {
		t.Fatal(err)
	}
	paced := net.PacedBy("eth0")
	if len(plan) != 2 || len(paced) != 3 || paced[0xfff0].Ceil != 1e6 {
		t.Errorf("%v by\n%s", paced, plan)
	}
	if h, err = traffic.Read(root.FS(), nil); err != nil || h.Devices["eth0"].Class(0).Ceiling() != 950e6 {
		t.Errorf("without a class, and without others: %v, %v", h.Devices["eth0"].Class(0), err)
	}
}

// joined is a network on which another process joins what divides a device, before its classes are
// read.
type joined struct{ *fakenet.Network }

func (joined) Classes(traffic.Mechanism, int) (map[uint16]traffic.Class, error) {
	return nil, fs.ErrNotExist
}

func TestJoinedMeanwhile(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	net.Put("eth0", traffic.Qdisc{Kind: "fq", Handle: 0x80010000, Paces: true})
	if err := root.Mkdir("sys/net/eth0/edt"); err != nil {
		t.Fatal(err)
	}
	for by, calls := range map[traffic.Mechanism]traffic.Calls{traffic.EDT: net, "": joined{net}} {
		h, err := traffic.Read(traffic.Lay(root, calls).FS(), nil)
		if err != nil || len(h.Devices) != 4 || h.Devices["eth0"].By != by || !h.Devices["eth0"].Paces {
			t.Errorf("%q: %+v, %v", by, h, err)
		}
	}
}

// A device that HTB divides is not said to have no fq: it may have had one.
func TestDividedAlready(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	net.Put("eth0", traffic.Qdisc{Kind: "fq", Paces: true})
	for _, tc := range []struct{ class, why string }{{"floor: 10%", "floors or priorities"}, {"ceiling: 50%", "HTB divides eth0 already"}} {
		c, err := parse(t, fmt.Sprintf("{devices: {eth0: {}}, classes: {bulk: {%s}}}", tc.class))
		if err != nil {
			t.Fatal(err)
		}
		l := layout(t, root, c)
		if k := l.Links[0]; k.By != traffic.HTB || !strings.Contains(k.Why, tc.why) {
			t.Errorf("%s: by %s: %s", tc.class, k.By, k.Why)
		}
		if _, err := kernel.Apply(root, l.Plan(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// However many devices and classes there are, the roots are read once.
func TestReadOnce(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	for i := range 50 {
		net.Plug(fmt.Sprint("veth", i))
	}
	c, err := parse(t, "{devices: {eth0: {}, dum0: {rate: 1Gbit}}, classes: {a: {priority: 1}, b: {priority: 2}}}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(root, layout(t, root, c).Plan(), nil); err != nil {
		t.Fatal(err)
	}
	before := net.Reads
	if l := layout(t, root, c); len(l.Links) != 2 || len(l.Links[0].Device.Has) != 4 || net.Reads != before+1 {
		t.Errorf("%d links with %v, read %d times", len(l.Links), l.Links[0].Device.Has, net.Reads-before)
	}
}

// The files refuse what they do not stand for.
func TestFiles(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	for name, want := range map[string]error{
		"sys/net/eth0/root": syscall.EACCES, "sys/net/eth0/htb/0001": fs.ErrNotExist, "sys/net/eth0/edt/0001": fs.ErrNotExist, "sys/net/eth7/htb/0001": fs.ErrNotExist, "sys/net/eth0/htb/1": syscall.EACCES,
	} {
		if err := root.WriteFile(name, "rate 1000 ceil 1000 prio 0"); !errors.Is(err, want) {
			t.Errorf("write %s: %v, want %v", name, err, want)
		}
	}
	for name, want := range map[string]error{"sys/net/eth7/htb": fs.ErrNotExist, "sys/net/eth0": syscall.EPERM, "sys/net/eth0/fq": syscall.EPERM, "sys/net/eth0/edt": syscall.EOPNOTSUPP} {
		if err := root.Mkdir(name); !errors.Is(err, want) {
			t.Errorf("mkdir %s: %v, want %v", name, err, want)
		}
	}
	if err := root.Mkdir("sys/net/eth0/htb"); err != nil {
		t.Fatal(err)
	}
	if err := root.Mkdir("sys/net/eth0/htb"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("made twice: %v", err)
	}
	if err := root.WriteFile("sys/net/eth0/htb/0001", "rate 9 ceil 8 prio 0"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a bad class: %v", err)
	}
	if err := root.WriteFile(traffic.MarkFile("sys/fs/cgroup/nobody"), "6be7:0010"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a mark of no group: %v", err)
	}
	if err := root.WriteFile(traffic.MarkFile("sys/fs/cgroup/web"), "1:1"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a mark of another discipline: %v", err)
	}
	net.Put("eth1", traffic.Qdisc{Kind: "tbf", Handle: 1 << 16})
	if err := root.Mkdir("sys/net/eth1/htb"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("beside a discipline of somebody else: %v", err)
	}
	if _, err := traffic.Read(fstest.MapFS{}, nil); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a tree of files: %v", err)
	}
}

// A device that was made anew has nothing of Berth's that could be undone.
func TestDeviceMadeAnew(t *testing.T) {
	t.Parallel()
	root, net := played(t)
	c, err := parse(t, "{devices: {eth0: {}}, classes: {a: {priority: 1}}}")
	if err != nil {
		t.Fatal(err)
	}
	undo, err := kernel.Apply(root, layout(t, root, c).Plan(), nil)
	if err != nil {
		t.Fatal(err)
	}
	net.Plug("eth0")
	theirs := traffic.Qdisc{Kind: "htb", Handle: 0x6be70000}
	net.Put("eth0", theirs)
	if err := undo(); err != nil {
		t.Error(err)
	}
	if q, _ := net.Of("eth0"); q != theirs {
		t.Errorf("undone: %v", q)
	}
}

// A device that has another name by now gets its discipline back all the same, also where another
// one has the name that it had.
func TestDeviceRenamed(t *testing.T) {
	t.Parallel()
	for _, another := range []bool{false, true} {
		root, net := played(t)
		log, err := kernel.CreateUndoLog(root, t.TempDir()+"/log", "test")
		if err != nil {
			t.Fatal(err)
		}
		c, err := parse(t, "{devices: {eth0: {}}, classes: {a: {priority: 1}}}")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kernel.Apply(root, layout(t, root, c).Plan(), log); err != nil {
			t.Fatal(err)
		}
		net.Rename("eth0", "lan0")
		if another {
			net.Rename("eth1", "eth0")
		}
		if _, err := log.Undo(func(kernel.Step) bool { return true }); err != nil {
			t.Error(err)
		}
		if q, _ := net.Of("lan0"); q.Kind != "pfifo_fast" || log.Has(func(kernel.Step) bool { return true }) {
			t.Errorf("lan0 has %v, the log %v", q, log.Notes())
		}
	}
}

func FuzzRate(f *testing.F) {
	for _, text := range []string{"100Mbit", "2.5Gbit", "10%", "8kbit", "123.456789Mbit", "123456789bit", "NaN%", "1e3Mbit"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var a, again traffic.Amount
		if a.UnmarshalText([]byte(text)) != nil {
			return
		}
		stored, err := a.MarshalText()
		if err := errors.Join(err, again.UnmarshalText(stored)); err != nil || again != a {
			t.Errorf("%q is stored as %q, and read as %v: %v", text, stored, again, err)
		}
	})
}
