package power

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/strictyaml"
)

// Schedule are profiles at some times of day, by the host's clock.
type Schedule struct {
	// From and To are times of day, as in "22:00"; with To before From it ends the next day;
	// required.
	From string `json:"from"`
	// To is when it ends; required.
	To string `json:"to"`
	// Days are those on which it begins: mon, tue, wed, thu, fri, sat, sun. Default: all.
	Days []string `json:"days,omitempty"`
	// Service goes over the service of the configuration, class by class; "none" is no profile.
	Service map[string]string `json:"service,omitempty"`
	// Shared and Reserved go over those of the configuration; "none" is no profile.
	Shared string `json:"shared,omitempty"`
	// Reserved is likewise that of the reserved CPUs.
	Reserved string `json:"reserved,omitempty"`
}

var days = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} // as of time.Weekday

// none is the word for no profile.
const none = "none"

// At returns what holds at a time, without schedules: of those that hold the first in the file
// counts.
func (c *Config) At(now time.Time) *Config {
	if c == nil || len(c.Schedules) == 0 {
		return c
	}
	at := *c
	at.Schedules = nil
	i := slices.IndexFunc(c.Schedules, func(s Schedule) bool { return s.holds(now) })
	if i < 0 {
		return &at
	}
	s := c.Schedules[i]
	over := func(to *string, name string) {
		switch name {
		case "":
		case none:
			*to = ""
		default:
			*to = name
		}
	}
	over(&at.Shared, s.Shared)
	over(&at.Reserved, s.Reserved)
	at.Service = map[string]string{}
	for _, all := range []map[string]string{c.Service, s.Service} {
		for class, name := range all {
			if at.Service[class] = name; name == none {
				delete(at.Service, class)
			}
		}
	}
	return &at
}

// holds reports whether a schedule holds at a time.
func (s Schedule) holds(now time.Time) bool {
	from, err1 := minutes(s.From)
	to, err2 := minutes(s.To)
	if err1 != nil || err2 != nil {
		return false
	}
	minute, day := now.Hour()*60+now.Minute(), now.Weekday()
	begins := func(day time.Weekday) bool { return len(s.Days) == 0 || slices.Contains(s.Days, days[day]) }
	switch {
	case from < to:
		return begins(day) && from <= minute && minute < to
	case minute >= from:
		return begins(day)
	}
	return begins((day+6)%7) && minute < to // it began yesterday
}

// minutes reads a time of day: "06:30".
func minutes(text string) (int, error) {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, fmt.Errorf("%q is no time of day, as in 06:30", text)
	}
	return t.Hour()*60 + t.Minute(), nil
}

// validate checks a schedule of a configuration.
func (s Schedule) validate(field string, fail func(string, error)) {
	for name, text := range map[string]string{"from": s.From, "to": s.To} {
		_, err := minutes(text)
		fail(field+"."+name, err)
	}
	if s.From != "" && s.From == s.To {
		fail(field+".to", errors.New("it ends when it begins: leave the schedule out, and give the profiles without one"))
	}
	for i, day := range s.Days {
		if !slices.Contains(days, day) {
			fail(fmt.Sprintf("%s.days[%d]", field, i), fmt.Errorf("%q is no day: mon, tue, wed, thu, fri, sat or sun%s", day, strictyaml.Nearest(day, days)))
		}
	}
	if s.Shared == "" && s.Reserved == "" && len(s.Service) == 0 {
		fail(field, errors.New("it has no profile: service, shared or reserved"))
	}
}
