package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// absent stands in a table for what was not measured or does not apply.
const absent = "–"

// unit is a unit of time for figures that are stored in microseconds.
type unit struct {
	name string
	us   float64
}

var (
	microseconds = unit{"µs", 1}
	milliseconds = unit{"ms", 1e3}
	seconds      = unit{"s", 1e6}
)

// unitFor chooses the largest unit in which the smallest of the figures (in
// microseconds, zeros aside) is still at least a tenth.
func unitFor(us ...float64) unit {
	least := math.Inf(1)
	for _, v := range us {
		if v > 0 && v < least {
			least = v
		}
	}
	switch {
	case math.IsInf(least, 1) || least < 0.1*milliseconds.us:
		return microseconds
	case least < 0.1*seconds.us:
		return milliseconds
	}
	return seconds
}

// in formats microseconds in the unit, without its name.
func (u unit) in(us float64) string { return digits3(us / u.us) }

// ownUnit is the unit that suits a single figure.
func ownUnit(us float64) unit {
	switch {
	case us >= 0.9995*seconds.us:
		return seconds
	case us >= 0.9995*milliseconds.us:
		return milliseconds
	}
	return microseconds
}

// latency formats microseconds with the unit that suits them.
func latency(us float64) string {
	u := ownUnit(us)
	return u.in(us) + " " + u.name
}

// digits3 formats v with three significant digits and no exponent.
func digits3(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.IsNaN(v) || math.IsInf(v, 0):
		return absent
	}
	magnitude := int(math.Floor(math.Log10(math.Abs(v))))
	scale := math.Pow(10, float64(2-magnitude))
	if r := math.Round(v*scale) / scale; math.Abs(r) >= math.Pow(10, float64(magnitude+1)) {
		magnitude++
	}
	// 4823 is shown as it is: rounding it to 4820 would only hide a digit.
	return strconv.FormatFloat(v, 'f', min(max(2-magnitude, 0), 6), 64)
}

// Digits formats a figure of a table with two decimals at most, three digits or all of a large
// one; 0 is what was not measured or does not apply.
func Digits(v float64) string {
	switch {
	case v == 0:
		return absent
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// times formats a ratio with its interval, all with the estimate's decimals:
// "1.32 [1.10, 1.58]". Limits that say no more than "anything" are cut short:
// "8.4 [<0.01, >999]".
func times(iv stats.Interval) string {
	decimals := 0
	if _, fraction, ok := strings.Cut(digits3(iv.Estimate), "."); ok {
		decimals = len(fraction)
	}
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', min(decimals, 2), 64) }
	limit := func(v float64) string {
		switch {
		case v < 0.01:
			return "<0.01"
		case v >= 1000 && iv.Estimate < 1000:
			return ">999"
		}
		return f(v)
	}
	if !iv.Known() {
		return f(iv.Estimate) // of too few blocks for an interval
	}
	return fmt.Sprintf("%s [%s, %s]", f(iv.Estimate), limit(iv.Low), limit(iv.High))
}

// percent formats a share (1 = all) as a whole percentage, and small ones with a digit more.
func percent(share float64) string {
	v := share * 100
	if v != 0 && math.Abs(v) < 9.95 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// quantileName is "p50", "p99.9".
func quantileName(p float64) string {
	return "p" + strconv.FormatFloat(p, 'f', -1, 64)
}

// span formats a length of time for people: "2 s", "1.5 ms", "1m37s".
func span(d time.Duration) string {
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return short(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return short(float64(d)/1e6) + " ms"
	}
	return short(float64(d)/1e3) + " µs"
}

// quantileOf finds one percentile of a row; ok is false where it is missing or
// the sample does not support it.
func quantileOf(row lab.Row, p float64) (q lab.Quantile, ok bool) {
	for _, q := range row.Quantiles {
		if q.P == p {
			return q, q.Reason == "" && q.Estimate > 0
		}
	}
	return lab.Quantile{}, false
}

// shortLatency formats a tick: "500 µs", "1 ms", "1.5 s".
func shortLatency(us float64) string {
	number, unit, _ := strings.Cut(latency(us), " ")
	return short(number) + " " + unit
}

// shortTimes formats a tick of a ratio: "0.9×", "10×".
func shortTimes(v float64) string { return short(digits3(v)) + "×" }

// short leaves out the zeros at the end of a fraction.
func short(number string) string {
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number
}

// atLeast marks a lower bound.
func atLeast(bound bool) string {
	if bound {
		return "≥"
	}
	return ""
}
