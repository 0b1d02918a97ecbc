package traffic

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"berth.dev/berth/kernel"
)

// Limit is the most that a control group may send and receive, through all devices together but
// the loopback device. 0 is no limit.
type Limit struct {
	// Send is what may be sent, as in 100Mbit. Default: no limit.
	Send Rate `json:"send,omitzero"`
	// Receive is what may be received; what arrives beyond it is dropped. Default: no limit.
	Receive Rate `json:"receive,omitzero"`
	// Arrival is what may be received through some devices, beside Receive.
	Arrival Arrival `json:"-"`
}

// Min is the smaller limit of both ways. Of two about what arrives through different devices it is the
// smaller rate, through the devices of both together, which is no more than either allows.
func (l Limit) Min(other Limit) Limit {
	least := func(a, b Rate) Rate {
		if a == 0 || b != 0 && b < a {
			return b
		}
		return a
	}
	return Limit{
		least(l.Send, other.Send), least(l.Receive, other.Receive),
		Arrival{l.Arrival.Devices.and(other.Arrival.Devices), least(l.Arrival.Rate, other.Arrival.Rate)},
	}
}

// Validate reports a rate that cannot be, or devices.
func (l Limit) Validate() error {
	for _, r := range []Rate{l.Send, l.Receive, l.Arrival.Rate} {
		if r != 0 && (r < leastRate || r > mostRate) {
			return fmt.Errorf("%s is not %s to %s", r, leastRate, mostRate)
		}
	}
	if l.Arrival != (Arrival{}) {
		return l.Arrival.Devices.validate()
	}
	return nil
}

// text is what the file of a control group has: bytes per second, and through which devices.
func (l Limit) text() string {
	var words []string
	for _, w := range []struct {
		name string
		of   Arrival
	}{{"send", Arrival{Rate: l.Send}}, {"receive", Arrival{Rate: l.Receive}}, {"receive", l.Arrival}} {
		if w.of.Rate != 0 {
			words = append(words, fmt.Sprintf("%s %d%s", w.name, w.of.Rate.bytes(), w.of.Devices.text()))
		}
	}
	if len(words) == 0 {
		return none
	}
	return strings.Join(words, " ")
}

// parseLimit reads what text writes.
func parseLimit(text string) (l Limit, err error) {
	text = strings.TrimSpace(text)
	for words := strings.Fields(text); len(words) >= 2; {
		bytes, err := strconv.ParseUint(words[1], 10, 48)
		if err != nil {
			break
		}
		name, rate := words[0], rateOf(bytes)
		words = words[2:]
		switch {
		case name == "send":
			l.Send = rate
		case name == "receive" && len(words) >= 2 && words[0] == "from":
			l.Arrival = Arrival{Devices(words[1]), rate}
			words = words[2:]
		case name == "receive":
			l.Receive = rate
		}
	}
	if err := l.Validate(); err != nil || l.text() != text {
		return Limit{}, fmt.Errorf("%q is no limit: send BYTES receive BYTES receive BYTES from DEVICE/DEVICE, some of them, or none", text)
	}
	return l, nil
}

// LimitFile is the file of a control group of cgroup v2 that says what it may send and receive.
func LimitFile(group string) string { return path.Join(group, limitFile) }

// Together is what the workloads of a class may receive together.
type Together struct {
	Class   uint16 // the class's number; 0 for no class
	Rate    Rate
	Devices Devices // through which
}

// text is what the file of a control group has.
func (s Together) text() string {
	if s == (Together{}) {
		return none
	}
	return fmt.Sprintf("%04x %d%s", s.Class, s.Rate.bytes(), s.Devices.text())
}

// parseTogether reads what text writes.
func parseTogether(text string) (s Together, err error) {
	if text = strings.TrimSpace(text); text == none {
		return s, nil
	}
	var bytes uint64
	rate, devices, _ := strings.Cut(text, " from ")
	_, err = fmt.Sscanf(rate, "%x %d", &s.Class, &bytes)
	s.Rate, s.Devices = rateOf(bytes), Devices(devices)
	limit := Limit{Receive: s.Rate}
	if devices != "" {
		limit.Arrival = Arrival{s.Devices, s.Rate}
	}
	if err != nil || s.Class == 0 || s.Rate == 0 || limit.Validate() != nil || s.text() != text {
		return Together{}, fmt.Errorf("%q is no limit of a class: CLASS BYTES, CLASS BYTES from DEVICE/DEVICE, or none", text)
	}
	return s, nil
}

// SetTogether is the step after which a control group is of those that receive together.
func SetTogether(group string, s Together, why string) kernel.Step {
	return kernel.Step{Path: path.Join(group, togetherFile), Value: s.text(), Why: why}
}

// SetLimit is the step after which a control group has a limit.
func SetLimit(group string, l Limit, why string) kernel.Step {
	return kernel.Step{Path: LimitFile(group), Value: l.text(), Why: why}
}

// IsLimit reports whether a file says what a control group may send or receive.
func IsLimit(name string) bool { return path.Base(name) == limitFile || isTogether(name) }

// Lifts reports whether a step leaves a control group without the limit of its file.
func Lifts(s kernel.Step) bool { return IsLimit(s.Path) && s.Value == none }

func isTogether(name string) bool { return path.Base(name) == togetherFile }

// What a group may send or receive at once, after it was idle, and beyond that before packets
// are dropped; in nanoseconds of its rate.
const (
	burst  = 250e6
	excess = 50e6
)

// What a program of a control group returns.
const (
	dropped     = 0
	passed      = 1
	droppedSlow = 2 // with word to TCP that the way is congested
	sentSlow    = 3
)

// limiter is the program that holds a control group to a rate, in bytes per second. Its map has
// a number for the time by which what has passed would have passed at the rate (a token bucket
// told by the clock), and one for the packets that were dropped. Of two CPUs that end a pause at
// once, one may lose its packet's part.
//
// What arrives beyond the rate is dropped. What is sent beyond it is sent with word to TCP that
// the way is congested, and what is far beyond it dropped with the same word
// (BPF_PROG_CGROUP_INET_EGRESS_RUN_ARRAY). What is not counted, first sends to "free".
func limiter(rate uint64, state int, first, beyond asm.Instructions) asm.Instructions {
	const loopback = 1 // LOOPBACK_IFINDEX
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, skbDevice, asm.Word),
		asm.JEq.Imm(asm.R1, loopback, "free"),
		asm.LoadMapValue(asm.R9, state, 0),
	}
	insns = append(insns, first...)
	insns = append(insns,
		asm.LoadMem(asm.R7, asm.R6, skbLength, asm.Word).WithSymbol("counted"),
		asm.Mul.Imm(asm.R7, 1e9),
		asm.LoadImm(asm.R2, int64(rate), asm.DWord),
		asm.Div.Reg(asm.R7, asm.R2), // what the packet takes at the rate
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Sub.Imm(asm.R2, burst),
		asm.JSGE.Reg(asm.R1, asm.R2, "recent"),
		asm.StoreMem(asm.R9, 0, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R2),
		asm.Sub.Reg(asm.R1, asm.R8).WithSymbol("recent"), // how far beyond the rate it is
		asm.Mov.Imm(asm.R0, passed),
		asm.JSLE.Imm(asm.R1, 0, "count"),
	)
	insns = append(insns, beyond...)
	insns = append(insns,
		asm.StoreXAdd(asm.R9, asm.R7, asm.DWord).WithSymbol("count"),
		asm.Return(),
	)
	insns = append(insns, countDropped(asm.R9, atDropped)...)
	return append(insns,
		asm.Return(),
		asm.Mov.Imm(asm.R0, passed).WithSymbol("free"),
		asm.Return(),
	)
}

// slowly is what is done with a packet that is sent beyond the rate.
func slowly() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, droppedSlow),
		asm.JSGT.Imm(asm.R1, excess, "drop"),
		asm.Mov.Imm(asm.R0, sentSlow),
	}
}

func sendLimiter(rate uint64, state int) asm.Instructions { return limiter(rate, state, nil, slowly()) }

// beyondDropped is what is done with a packet that arrives beyond the rate.
func beyondDropped() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, dropped), asm.Ja.Label("drop")}
}

func receiveLimiter(rate uint64, state int) asm.Instructions {
	return limiter(rate, state, nil, beyondDropped())
}

// receivesTogether is the number of a program that all groups of a class have: the clock in its map
// is theirs together.
func receivesTogether(s Together) uint64 { return s.Rate.bytes()<<16 | uint64(s.Class) }

func togetherOf(number uint64) Together {
	return Together{Class: uint16(number), Rate: rateOf(number >> 16)}
}

// togetherLimiter is an arrivalLimiter of a class. Which tree of groups it is for tells it from that
// of another Berth, in a container.
func togetherLimiter(number uint64, state int) asm.Instructions {
	return append(asm.Instructions{asm.LoadImm(asm.R0, int64(ownTree()), asm.DWord)}, arrivalLimiter(number>>16, state)...)
}

// ownTree is the inode of the group that this process sees at the top of cgroup v2, 0 without.
var ownTree = sync.OnceValue(func() uint64 {
	mounts, _ := kernel.ReadMounts(os.DirFS("/")) // an error is cgroup.Detect's to tell
	for _, m := range mounts {
		var stat syscall.Stat_t
		if m.Type == "cgroup2" && syscall.Stat("/"+m.Dir, &stat) == nil {
			return stat.Ino
		}
	}
	return 0
})

// The map of every limiter begins with the clock and the number of packets that it has dropped, of
// 8 bytes each.
const (
	atDropped   = 8
	sizeOfClock = 16
)

// clock is the map of a limiter.
func clock() (*ebpf.MapSpec, error) {
	return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: sizeOfClock, MaxEntries: 1}, nil
}

// countDropped adds the packet of R6 to the number at an offset of what a register points to, from
// the label "drop" on. What the device would cut into segments, or has put together, is so many
// packets. It changes R1.
func countDropped(in asm.Register, at int16) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, skbSegments, asm.Word).WithSymbol("drop"),
		asm.JNE.Imm(asm.R1, 0, "segments"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(in, asm.R1, asm.DWord, at).WithSymbol("segments"),
	}
}

// droppedBy are the packets that the programs of a kind at a control group have dropped since they
// were attached. Those of another build of Berth's that does not count them are left out.
func (k *programs) droppedBy(target int) (packets uint64, err error) {
	err = k.all(target, func(p *ebpf.Program, _ uint64, older bool) error {
		if older {
			return nil
		}
		return mapsOf(p, func(m *ebpf.Map) error {
			value := make([]byte, m.ValueSize())
			if len(value) < sizeOfClock {
				return nil
			}
			err := m.Lookup(uint32(0), &value)
			packets += order.Uint64(value[atDropped:])
			return err
		})
	})
	return packets, err
}
