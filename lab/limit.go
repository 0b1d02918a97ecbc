package lab

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limit is what a user wants of the tenant: a percentile of response time within a time.
type Limit struct {
	P    float64  `json:"p"` // 50, 95 or 99
	Most Duration `json:"most"`
}

// Limits are those of a run. As a flag they are written "p99=20ms,p50=2ms".
type Limits []Limit

// Set parses limits; it replaces those that there are.
func (l *Limits) Set(text string) error {
	var all Limits
	for part := range strings.SplitSeq(text, ",") {
		name, most, ok := strings.Cut(strings.TrimSpace(part), "=")
		p, err := strconv.ParseFloat(strings.TrimPrefix(name, "p"), 64)
		length, wrong := time.ParseDuration(most)
		if !ok || !strings.HasPrefix(name, "p") || err != nil || wrong != nil {
			return fmt.Errorf("limit %q: want a percentile and a time, as in p99=20ms", part)
		}
		all = append(all, Limit{p, Duration(length)})
	}
	if err := all.validate(); err != nil {
		return err
	}
	*l = all
	return nil
}

func (l Limits) validate() error {
	for _, limit := range l {
		if limit.P != 50 && limit.P != 95 && limit.P != 99 {
			return fmt.Errorf("limit p%g: want p50, p95 or p99", limit.P)
		}
		if limit.Most <= 0 || time.Duration(limit.Most) > time.Minute {
			return fmt.Errorf("limit p%g: %s: want more than 0 and at most 1m", limit.P, limit.Most)
		}
	}
	return nil
}

// String is what Set parses.
func (l Limits) String() string {
	var parts []string
	for _, limit := range l {
		parts = append(parts, limit.String())
	}
	return strings.Join(parts, ",")
}

func (l Limit) String() string { return fmt.Sprintf("p%g=%s", l.P, l.Most) }

// Type is how help names the value.
func (*Limits) Type() string { return "limits" }
