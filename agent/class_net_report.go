package agent

import (
	"errors"
	"fmt"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel/traffic"
)

// everybodyElse have what network classes leave.
const everybodyElse = "everybody else"

// ClassLink is what a class has of a network device.
type ClassLink struct {
	Device string `json:"device"`
	// Floor and Ceiling are the least and the most that it may send, in bits per second.
	Floor   float64 `json:"floor"`
	Ceiling float64 `json:"ceiling"`
	// Priority is from 1 (first) to 8.
	Priority int `json:"priority"`
	// By is what divides the device: htb, or edt, which has ceilings alone. Why is the reason.
	By  traffic.Mechanism `json:"by"`
	Why string            `json:"why"`
	// Dropped are packets of the class that the device has lost since the class came: they found its
	// queue full or, by edt, were due too late. Nil is not known.
	Dropped *uint64 `json:"dropped,omitempty"`
}

// Text is what it has, for people.
func (l *ClassLink) Text() string {
	if l.By == traffic.EDT {
		return fmt.Sprintf("at most %s, by fq", traffic.Rate(l.Ceiling))
	}
	return fmt.Sprintf("%s to %s, priority %d", traffic.Rate(l.Floor), traffic.Rate(l.Ceiling), l.Priority)
}

// WorkloadLimit is what one workload may send and receive at most, in bits per second; 0 is no limit.
type WorkloadLimit struct {
	Workload string  `json:"workload"`
	Send     float64 `json:"send,omitempty"`
	Receive  float64 `json:"receive,omitempty"`
	// Around says that it is that of its pod.
	Around bool `json:"around,omitempty"`
}

// WorkloadDrops are packets that were dropped since the limits were set, of the workload's control
// group or, around it, of its pod's: that of a pod is told of each workload in it.
type WorkloadDrops struct {
	Workload string `json:"workload"`
	Packets  uint64 `json:"packets"`
}

// drops are the packets that limits have dropped, as far as that is known: of each workload with limits, by
// its own and that of each of its class, and by what those of a class receive together.
func (r *classReading) drops() (own []WorkloadDrops, together map[string]uint64) {
	together = map[string]uint64{}
	for i := range r.workloads {
		w, lost := &r.workloads[i], uint64(0)
		known := len(r.held[w.ID()]) > 0
		for _, group := range r.held[w.ID()] {
			packets, common, ok := traffic.DroppedOf(r.fsys, group)
			if !ok {
				known = false
				continue
			}
			lost += packets
			if class := r.config.ClassOf(NetClass, &w.Spec); class != "" {
				together[class] = max(together[class], common) // one program counts for all groups
			}
		}
		if known {
			own = append(own, WorkloadDrops{w.ID(), lost})
		}
	}
	return own, together
}

// knownOf is a number in a map, nil if it is not there.
func knownOf[K comparable](numbers map[K]uint64, of K) *uint64 {
	if n, ok := numbers[of]; ok {
		return &n
	}
	return nil
}

// receivedBy is of what the settings of a class are that say what its workloads receive.
const receivedBy = "received"

// NetOf returns the network class of a workload; nil if there is none.
func (r *ClassReport) NetOf(w *Workload) *ClassUse {
	for i := range r.Kinds {
		for j := range r.Kinds[i].Classes {
			if c := &r.Kinds[i].Classes[j]; r.Kinds[i].Kind == NetClass && c.Name == w.Classes[NetClass] {
				return c
			}
		}
	}
	return nil
}

// Received are the limits of what the workloads of a network class receive, in words.
func (c *ClassUse) Received() (texts []string) {
	for _, s := range c.Settings {
		if s.Of == receivedBy {
			texts = append(texts, s.Value)
		}
	}
	return texts
}

// reportNet is the section of the kind net.
func reportNet(r *classReading) (s ClassSection, err error) {
	for i := range r.workloads {
		if w := &r.workloads[i]; !w.Spec.Bandwidth.none() {
			b := &w.Spec.Bandwidth
			s.Limits = append(s.Limits, WorkloadLimit{w.ID(), float64(b.Send), float64(b.Receive), b.Around})
		}
	}
	var together map[string]uint64
	s.Drops, together = r.drops()
	if r.config.Net == nil {
		return s, nil
	}
	lost := traffic.Dropped(r.fsys)
	h, err := traffic.Read(r.fsys, r.config.Net)
	if err != nil {
		return s, err
	}
	layout, err := r.config.Net.Layout(h)
	for _, e := range strictyaml.Errors(errors.Join(err, r.config.Net.Absent(h, r.config.Net.Names()...))) {
		s.Notes = append(s.Notes, e.Err.Error())
	}
	for _, link := range layout.Links {
		s.Notes = append(s.Notes, link.Notes...)
	}
	names := r.config.Net.Names()
	if len(r.config.Net.Links()) > 0 {
		names = append(names, traffic.Others)
	}
	for _, name := range names {
		use := ClassUse{Name: name, Workloads: r.members(NetClass, name)}
		if name == traffic.Others {
			use.Workloads = []string{everybodyElse}
		}
		share, from := r.config.Net.Classes[name], ""
		if share.ReceiveFrom != "" {
			from = " from " + share.ReceiveFrom.String()
		}
		if share.Receive > 0 {
			use.Settings = append(use.Settings, ClassSetting{receivedBy, share.Receive.String() + " each" + from})
		}
		if share.ReceiveTogether > 0 {
			use.Settings = append(use.Settings, ClassSetting{receivedBy, share.ReceiveTogether.String() + " together" + from})
			use.Dropped = knownOf(together, name)
		}
		use.InForce = !r.planned && len(use.Workloads) > 0
		if name != traffic.Others && !r.config.Net.Divides(name) {
			s.Classes = append(s.Classes, use)
			continue
		}
		use.InForce = use.InForce && len(layout.Links) > 0
		for i := range layout.Links {
			link := &layout.Links[i]
			of := link.Find(layout, name)
			use.InForce = use.InForce && link.InForce(layout, name)
			l := ClassLink{link.Device.Name, float64(of.Floor()), float64(of.Ceiling()), of.Priority(), link.By, link.Why, knownOf(lost[link.Device.Name], layout.Minor(name))}
			use.Links, use.Settings = append(use.Links, l), append(use.Settings, ClassSetting{l.Device, l.Text()})
		}
		s.Classes = append(s.Classes, use)
	}
	return s, nil
}
