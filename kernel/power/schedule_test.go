package power

import (
	"fmt"
	"testing"
	"time"
)

func TestSchedule(t *testing.T) {
	t.Parallel()
	c := &Config{
		Service: map[string]string{"LSE": "performance", "BE": "power"}, Shared: "balance-performance", Reserved: "power",
		Schedules: []Schedule{
			{From: "22:00", To: "06:00", Days: []string{"fri", "sat"}, Shared: "power", Service: map[string]string{"LSE": "balance-power", "BE": none}},
			{From: "20:00", To: "23:30", Shared: none, Reserved: "balance-power"},
		},
	}
	for at, want := range map[string]string{ // the 23rd of November 2026 is a Monday
		"23 19:59": "map[BE:power LSE:performance] balance-performance power",
		"23 20:00": "map[BE:power LSE:performance]  balance-power",
		"23 23:29": "map[BE:power LSE:performance]  balance-power",
		"23 23:30": "map[BE:power LSE:performance] balance-performance power",
		"27 21:59": "map[BE:power LSE:performance]  balance-power",
		"27 22:00": "map[LSE:balance-power] power power", // Friday, the first counts
		"28 05:59": "map[LSE:balance-power] power power",
		"28 06:00": "map[BE:power LSE:performance] balance-performance power",
		"28 22:30": "map[LSE:balance-power] power power",
		"29 05:59": "map[LSE:balance-power] power power", // Sunday, of Saturday's
		"29 23:45": "map[BE:power LSE:performance] balance-performance power",
		"30 01:00": "map[BE:power LSE:performance] balance-performance power",
	} {
		now, err := time.ParseInLocation("2006-01-02 15:04", "2026-11-"+at, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		is := c.At(now)
		if got := fmt.Sprint(is.Service, " ", is.Shared, " ", is.Reserved); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
	if c.Shared != "balance-performance" || c.Service["BE"] != "power" {
		t.Error("the configuration itself has changed")
	}
	c.Schedules = []Schedule{{From: "00:00", To: "23:59", Shared: "nonessential", Reserved: "turn-none"}}
	if at := c.At(time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)); at.Shared != "nonessential" || at.Reserved != "turn-none" {
		t.Errorf("profiles %q and %q, want nonessential and turn-none", at.Shared, at.Reserved)
	}
	var absent *Config
	if absent.At(time.Now()) != nil {
		t.Error("no configuration has become one")
	}
}
