package detect

import (
	"cmp"
	"fmt"
	"strings"

	"berth.dev/berth/watch"
)

// Outside is the Suspect where processes outside of any group, which make up the
// root group, are to blame. There is no neighbour to act on then.
const Outside = "/"

// program begins the name of a workload that is the processes of one program in no group
// of their own.
const program = "process "

// Name is what a workload is called whose samples have a subject: a group by its path, the
// processes of a program "process nginx".
func Name(s watch.Subject) string {
	if s.Scope == watch.Process {
		return program + s.Name
	}
	return s.Name
}

// InNoGroup says whether a suspect is processes in no group of their own: there is no
// neighbour to act on then.
func InNoGroup(suspect string) bool { return suspect == Outside || strings.HasPrefix(suspect, program) }

// subjectOf is what a workload with a name is.
func subjectOf(name string) watch.Subject {
	if comm, ok := strings.CutPrefix(name, program); ok {
		return watch.Subject{Scope: watch.Process, Name: comm}
	}
	return watch.Subject{Scope: watch.Group, Name: name}
}

// Finding is a claim that a workload suffers, from what, and by whom.
type Finding struct {
	// Time is the end of the last window looked at.
	Time   watch.Time `json:"time"`
	Victim string     `json:"victim"`
	// Suspect is the group that is accused, or Outside; "" if nobody in particular is.
	Suspect  string   `json:"suspect,omitempty"`
	Resource Resource `json:"resource"`
	// Confidence is the expected part of the next window's damage that is as
	// claimed: (Agreeing+1)/(Windows+2), the chance by Laplace's rule of
	// succession that the next window agrees, times Share.
	Confidence float64 `json:"confidence"`
	// Agreeing of the last Windows windows agree; those that lack a signal do not.
	Agreeing int `json:"agreeing"`
	Windows  int `json:"windows"`
	// Share is the suspect's part of the damage, by the mean of the windows that
	// agree; the last evidence about the suspect says of what. It is 1 where
	// there is no suspect.
	Share float64 `json:"share"`
	// Takes says that the suspect has begun of late to take the victim's CPUs, as the CPU time tells that it uses. It
	// takes less of a symptom then to accuse it: enough for a remedy by which it yields, and no more.
	Takes bool `json:"takes,omitempty"`
	// Evidence is what the last window that agrees showed.
	Evidence []Evidence `json:"evidence"`
	// Outsiders are the programs of the processes in no group that use most CPU time, where the
	// Suspect is Outside and whoever reads the host could tell.
	Outsiders []Outsider `json:"outsiders,omitempty"`
	// Missing are the signals that would tell more and were not there in it.
	Missing []Signal `json:"missing,omitempty"`
	// Interrupts are what takes most of a CPU's time in the kernel's handlers of interrupts,
	// where that is much and it is not known that a group has the CPUs.
	Interrupts *Interrupts `json:"interrupts,omitempty"`
	// Remedies would help, the cheapest and easiest to revert first.
	Remedies []Remedy `json:"remedies,omitempty"`
}

// Evidence is one figure that speaks for a finding.
type Evidence struct {
	Subject watch.Subject `json:"subject"`
	Signal  Signal        `json:"signal"`
	Value   float64       `json:"value"`
	// Baseline is the mean while nothing was wrong at this load; nil if none was
	// needed or learnt.
	Baseline *float64 `json:"baseline,omitempty"`
	// Threshold is what Value reached: from below, or from above for Clock,
	// Occupancy and LocalMemory.
	Threshold float64 `json:"threshold"`
	// From and To are the window.
	From watch.Time `json:"from"`
	To   watch.Time `json:"to"`
}

// String says it in plain words, without the subject.
func (e Evidence) String() string {
	limit := "at least"
	if signalInfos[e.Signal].below {
		limit = "at most"
	}
	text := fmt.Sprintf("%s %s (%s %s counts", e.Signal.Words(), e.Signal.format(e.Value), limit, e.Signal.format(e.Threshold))
	if e.Baseline != nil {
		text += ", usually " + e.Signal.format(*e.Baseline)
	}
	return text + ")"
}

// Outsider is what the processes of a program, in no group of their own, use; all threads of
// the kernel are one.
type Outsider struct {
	Program string `json:"program"`
	// CPUs is their CPU time per second.
	CPUs float64 `json:"cpus"`
}

// Interrupts are those of the CPU that spends most time with them.
type Interrupts struct {
	CPU int `json:"cpu"`
	// Share is the part of its time that goes to interrupts and what follows at once (softirq).
	Share float64 `json:"share"`
	// Lines are those that come most often there, each with its device.
	Lines []InterruptLine `json:"lines,omitempty"`
}

// InterruptLine is an interrupt of a device.
type InterruptLine struct {
	Number    int     `json:"number"`
	Device    string  `json:"device,omitempty"`
	PerSecond float64 `json:"perSecond"`
}

// String says it in a few words.
func (i *Interrupts) String() string {
	text := fmt.Sprintf("interrupts take %.0f %% of CPU %d", 100*i.Share, i.CPU)
	for n, line := range i.Lines {
		text += []string{": ", ", "}[min(n, 1)] + fmt.Sprintf("%s (line %d, %.0f a second)", cmp.Or(line.Device, "a device without a name"), line.Number, line.PerSecond)
	}
	return text
}

// Sentence says in one line who suffers, from what, by whom, and how sure that is.
func (f Finding) Sentence() string {
	what, _, _ := strings.Cut(f.String(), "\n")
	return fmt.Sprintf("%s (%.0f %% sure)", what, 100*f.Confidence)
}

// String says in plain words who suffers, from what, by whom, how sure that is,
// on what evidence, and what would help.
func (f Finding) String() string {
	var b strings.Builder
	lacks := f.Resource.String()
	if int(f.Resource) < resources {
		lacks = resourceInfos[f.Resource].plain
	}
	fmt.Fprintf(&b, "%s %s", f.Victim, lacks)
	if f.Suspect != "" {
		fmt.Fprintf(&b, ", because of %s", Called(f.Suspect))
		for i, o := range f.Outsiders {
			b.WriteString([]string{": ", ", "}[min(i, 1)] + fmt.Sprintf("%s %.2f CPUs", o.Program, o.CPUs))
		}
	}
	fmt.Fprintf(&b, "\n  sure: %.0f %% (%d of %d windows", 100*f.Confidence, f.Agreeing, f.Windows)
	if f.Suspect != "" {
		fmt.Fprintf(&b, ", %.0f %% of the damage", 100*f.Share)
	}
	b.WriteString(")\n")
	for _, e := range f.Evidence {
		fmt.Fprintf(&b, "  seen: %s: %s\n", about(e.Subject), e)
	}
	if i := f.Interrupts; i != nil {
		fmt.Fprintf(&b, "  seen: %v\n", i)
		b.WriteString("  would help: to have them on CPUs that the victim does not use (/proc/irq/NUMBER/smp_affinity_list), or fewer of them (ethtool -C)\n")
	}
	for _, s := range f.Missing {
		fmt.Fprintf(&b, "  unknown: %s\n", s.Words())
	}
	switch {
	case InNoGroup(f.Suspect):
		b.WriteString("  would help: to give them a group of their own, in class BE\n")
	case len(f.Remedies) == 0:
		b.WriteString("  would help: nothing on this host\n")
	}
	for _, r := range f.Remedies {
		fmt.Fprintf(&b, "  would help: %s\n", r.Words())
	}
	return b.String()
}

// Called is how a suspect is named to a person.
func Called(suspect string) string {
	if suspect == Outside {
		return "processes outside of any group"
	}
	return suspect
}

func about(s watch.Subject) string {
	if s == (watch.Subject{Scope: watch.Group, Name: Outside}) {
		return Called(Outside)
	}
	return s.String()
}
