package power

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/intel/goresctrl/pkg/sst"
	"github.com/intel/goresctrl/pkg/utils"

	"berth.dev/berth/cpuset"
)

// speedDevice takes the commands.
const speedDevice = "/dev/isst_interface"

// library are the SpeedCalls of the live host, by the mailbox or by TPMI, as the library finds.
type library struct {
	online func() string // which CPUs are

	mu       sync.Mutex
	platform *sst.Platform
	known    string // the CPUs that were online then
}

var silence = sync.OnceFunc(func() { sst.SetLogger(slog.New(slog.DiscardHandler)) }) // what is wrong is in its errors

// open returns the library's view of the CPUs that are online now.
func (l *library) open() (*sst.Platform, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	device, err := os.Open(speedDevice)
	if err != nil {
		return nil, err // the library's errors do not tell which it is
	}
	if err := device.Close(); err != nil {
		return nil, err
	}
	if online := l.online(); l.platform == nil || online != l.known {
		silence()
		if l.platform, err = sst.Init(); err != nil {
			return nil, err
		}
		l.known = online
	}
	return l.platform, nil
}

// Packages implements SpeedCalls.
func (l *library) Packages() (all []SpeedPackage, err error) {
	platform, err := l.open()
	if err != nil {
		return nil, err
	}
	for _, of := range platform.Packages() {
		p, err := readPackage(of)
		if err != nil {
			return nil, fmt.Errorf("package %d: %w", of.ID(), err)
		}
		all = append(all, p)
	}
	return all, nil
}

func readPackage(of *sst.Package) (p SpeedPackage, err error) {
	status, err := of.GetStatus()
	if err != nil {
		return p, err
	}
	return speedPackage(status, of.GetPerfLevelInfo)
}

// speedPackage is what a status of the library says; level returns what it knows of a performance
// level, by power domain.
func speedPackage(status *sst.PackageStatus, level func(int) (map[utils.ID]*sst.PerfLevelInfo, error)) (p SpeedPackage, err error) {
	p = SpeedPackage{ID: status.ID, Priority: map[int]int{}}
	power, turbo := true, true
	ids := make([]int, 0, len(status.Punits))
	for id, d := range status.Punits {
		ids = append(ids, id)
		power, turbo = power && d.CP.Supported, turbo && d.TF.Supported
	}
	slices.Sort(ids)
	one := func(to *string, text string) {
		if *to = cmp.Or(*to, text); *to != text {
			*to = unlike
		}
	}
	for _, id := range ids {
		d := status.Punits[id]
		domain := SpeedDomain{CPUs: cpuset.MustOf(d.CPUs.Members()...)}
		if power {
			one(&p.CorePower, word(d.CP.Enabled))
			one(&p.Order, map[bool]string{true: ordered, false: proportional}[d.CP.Priority == sst.Ordered])
			for priority, c := range d.Clos[:min(len(d.Clos), Priorities)] {
				for _, cpu := range c.CPUs.Members() {
					p.Priority[cpu] = priority
				}
				p.Most[priority] = max(p.Most[priority], 1000*c.Config.MaxFreq)
			}
		}
		if power && turbo {
			one(&p.Turbo, word(d.TF.Enabled))
			levels, err := level(d.PP.CurrentLevel)
			if err != nil {
				return p, err
			}
			if info := levels[id]; info != nil {
				for _, bucket := range info.TF.Buckets {
					domain.HighCores = max(domain.HighCores, bucket.HighPriorityCoreCount)
				}
			}
		}
		p.Domains = append(p.Domains, domain)
	}
	return p, nil
}

// Priority implements SpeedCalls.
func (l *library) Priority(cpu int) (int, error) {
	platform, err := l.ofCPU(cpu)
	if err != nil {
		return 0, err
	}
	return platform.GetCPUClosID(cpu)
}

// SetPriority implements SpeedCalls.
func (l *library) SetPriority(cpu, priority int) error {
	platform, err := l.ofCPU(cpu)
	if err != nil {
		return err
	}
	return platform.ClosAssociate(priority, utils.NewIDSet(cpu))
}

// ofCPU is open for a CPU that is online: the library knows no other.
func (l *library) ofCPU(cpu int) (*sst.Platform, error) {
	platform, err := l.open()
	if err != nil {
		return nil, err
	}
	if online, err := cpuset.Parse(l.known); err == nil && !online.Has(cpu) {
		return nil, fmt.Errorf("CPU %d is offline: %w", cpu, syscall.EBUSY)
	}
	return platform, nil
}

// SetCorePower implements SpeedCalls.
func (l *library) SetCorePower(pkg int, on bool) error {
	return l.of(pkg, on, (*sst.Package).CPEnable, (*sst.Package).CPDisable)
}

// SetOrder implements SpeedCalls. The mailbox keeps no order while priorities do not count.
func (l *library) SetOrder(pkg int, ordered bool) error {
	set := func(t sst.CPPriorityType) func(*sst.Package) error {
		return func(p *sst.Package) error { return p.CPSetPriorityType(t) }
	}
	return l.of(pkg, ordered, set(sst.Ordered), set(sst.Proportional))
}

// SetTurbo implements SpeedCalls.
func (l *library) SetTurbo(pkg int, on bool) error {
	return l.of(pkg, on, (*sst.Package).TFEnable, (*sst.Package).TFDisable)
}

// of calls one of two commands for a package.
func (l *library) of(pkg int, on bool, yes, no func(*sst.Package) error) error {
	platform, err := l.open()
	if err != nil {
		return err
	}
	p, ok := platform.Package(pkg)
	switch {
	case !ok:
		return errNoCPU
	case on:
		return yes(p)
	}
	return no(p)
}
