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
}

// Min is the smaller limit of both ways.
func (l Limit) Min(other Limit) Limit {
	least := func(a, b Rate) Rate {
		if a == 0 || b != 0 && b < a {
			return b
		}
		return a
	}
	return Limit{least(l.Send, other.Send), least(l.Receive, other.Receive)}
}

// Validate reports a rate that cannot be.
func (l Limit) Validate() error {
	for _, r := range []Rate{l.Send, l.Receive} {
		if r != 0 && (r < leastRate || r > mostRate) {
			return fmt.Errorf("%s is not %s to %s", r, leastRate, mostRate)
		}
	}
	return nil
}

// text is what the file of a control group has: bytes per second.
func (l Limit) text() string {
	var words []string
	for _, w := range []struct {
		name string
		rate Rate
	}{{"send", l.Send}, {"receive", l.Receive}} {
		if w.rate != 0 {
			words = append(words, fmt.Sprintf("%s %d", w.name, w.rate.bytes()))
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
	words := strings.Fields(text)
	for i := 0; i+1 < len(words); i += 2 {
		bytes, err := strconv.ParseUint(words[i+1], 10, 48)
		if err != nil {
			break
		}
		switch words[i] {
		case "send":
			l.Send = rateOf(bytes)
		case "receive":
			l.Receive = rateOf(bytes)
		}
	}
	if err := l.Validate(); err != nil || l.text() != text {
		return Limit{}, fmt.Errorf("%q is no limit: send BYTES receive BYTES, one of them, or none", text)
	}
	return l, nil
}

// LimitFile is the file of a control group of cgroup v2 that says what it may send and receive.
func LimitFile(group string) string { return path.Join(group, limitFile) }

// Together is what the workloads of a class may receive together, through all devices but the
// loopback device.
type Together struct {
	Class uint16 // the class's number; 0 for no class
	Rate  Rate
}

// text is what the file of a control group has.
func (s Together) text() string {
	if s == (Together{}) {
		return none
	}
	return fmt.Sprintf("%04x %d", s.Class, s.Rate.bytes())
}

// parseTogether reads what text writes.
func parseTogether(text string) (s Together, err error) {
	if text = strings.TrimSpace(text); text == none {
		return s, nil
	}
	var bytes uint64
	_, err = fmt.Sscanf(text, "%x %d", &s.Class, &bytes)
	s.Rate = rateOf(bytes)
	if err != nil || s.Class == 0 || s.Rate == 0 || (Limit{Receive: s.Rate}).Validate() != nil || s.text() != text {
		return Together{}, fmt.Errorf("%q is no limit of a class: CLASS BYTES, or none", text)
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
// one number: the time by which what has passed would have passed at the rate (a token bucket
// told by the clock). Of two CPUs that end a pause at once, one may lose its packet's part.
//
// What arrives beyond the rate is dropped. What is sent beyond it is sent with word to TCP that
// the way is congested, and what is far beyond it dropped with the same word
// (BPF_PROG_CGROUP_INET_EGRESS_RUN_ARRAY).
func limiter(rate uint64, state int, beyond asm.Instructions) asm.Instructions {
	const loopback = 1 // LOOPBACK_IFINDEX
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, skbDevice, asm.Word),
		asm.JEq.Imm(asm.R1, loopback, "free"),
		asm.LoadMem(asm.R7, asm.R6, skbLength, asm.Word),
		asm.Mul.Imm(asm.R7, 1e9),
		asm.LoadImm(asm.R2, int64(rate), asm.DWord),
		asm.Div.Reg(asm.R7, asm.R2), // what the packet takes at the rate
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMapValue(asm.R9, state, 0),
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Sub.Imm(asm.R2, burst),
		asm.JSGE.Reg(asm.R1, asm.R2, "recent"),
		asm.StoreMem(asm.R9, 0, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R2),
		asm.Sub.Reg(asm.R1, asm.R8).WithSymbol("recent"), // how far beyond the rate it is
		asm.Mov.Imm(asm.R0, passed),
	}
	insns = append(insns, asm.JSLE.Imm(asm.R1, 0, "count"))
	insns = append(insns, beyond...)
	return append(insns,
		asm.StoreXAdd(asm.R9, asm.R7, asm.DWord).WithSymbol("count"),
		asm.Return().WithSymbol("end"),
		asm.Mov.Imm(asm.R0, passed).WithSymbol("free"),
		asm.Return(),
	)
}

// slowly is what is done with a packet that is sent beyond the rate.
func slowly() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, droppedSlow),
		asm.JSGT.Imm(asm.R1, excess, "end"),
		asm.Mov.Imm(asm.R0, sentSlow),
	}
}

func sendLimiter(rate uint64, state int) asm.Instructions { return limiter(rate, state, slowly()) }

func receiveLimiter(rate uint64, state int) asm.Instructions {
	return limiter(rate, state, asm.Instructions{asm.Mov.Imm(asm.R0, dropped), asm.Ja.Label("end")})
}

// receivesTogether is the number of a program that all groups of a class have: the clock in its map
// is theirs together.
func receivesTogether(s Together) uint64 { return s.Rate.bytes()<<16 | uint64(s.Class) }

func togetherOf(number uint64) Together { return Together{uint16(number), rateOf(number >> 16)} }

// togetherLimiter is a receiveLimiter of a class. Which tree of groups it is for tells it from that
// of another Berth, in a container.
func togetherLimiter(number uint64, state int) asm.Instructions {
	return append(asm.Instructions{asm.LoadImm(asm.R0, int64(ownTree()), asm.DWord)}, receiveLimiter(number>>16, state)...)
}

// ownTree is the inode of the group that this process sees at the top of cgroup v2, 0 without.
var ownTree = sync.OnceValue(func() uint64 {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	mounts, _ := kernel.ParseMounts(string(text))
	for _, m := range mounts {
		var stat syscall.Stat_t
		if m.Type == "cgroup2" && syscall.Stat("/"+m.Dir, &stat) == nil {
			return stat.Ino
		}
	}
	return 0
})

// clock is the map of a limiter.
func clock() (*ebpf.MapSpec, error) {
	return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}, nil
}
