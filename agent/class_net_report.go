package agent

import (
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

// LinksOf returns what a workload has of each network device by its class.
func (r *ClassReport) LinksOf(w *Workload) []ClassLink {
	for i := range r.Kinds {
		for _, c := range r.Kinds[i].Classes {
			if r.Kinds[i].Kind == NetClass && c.Name == w.Classes[NetClass] {
				return c.Links
			}
		}
	}
	return nil
}

// reportNet is the section of the kind net.
func reportNet(r *classReading) (s ClassSection, err error) {
	for i := range r.workloads {
		if w := &r.workloads[i]; !w.Spec.Bandwidth.none() {
			b := &w.Spec.Bandwidth
			s.Limits = append(s.Limits, WorkloadLimit{w.ID(), float64(b.Send), float64(b.Receive), b.Around})
		}
	}
	if r.config.Net == nil {
		return s, nil
	}
	h, err := traffic.Read(r.fsys, r.config.Net)
	if err != nil {
		return s, err
	}
	layout, err := r.config.Net.Layout(h)
	for _, e := range strictyaml.Errors(err) {
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
		if rate := r.config.Net.Classes[name].Receive; rate > 0 {
			use.Settings = append(use.Settings, ClassSetting{"received", rate.String() + " each"})
		}
		if rate := r.config.Net.Classes[name].ReceiveTogether; rate > 0 {
			use.Settings = append(use.Settings, ClassSetting{"received", rate.String() + " together"})
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
			l := ClassLink{link.Device.Name, float64(of.Floor()), float64(of.Ceiling()), of.Priority(), link.By, link.Why}
			use.Links, use.Settings = append(use.Links, l), append(use.Settings, ClassSetting{l.Device, l.Text()})
		}
		s.Classes = append(s.Classes, use)
	}
	return s, nil
}
