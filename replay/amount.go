package replay

import (
	"fmt"
	"strconv"
	"strings"
)

// parseMilli reads CPU time: "4", "2.5" or "500m". The result is in thousandths
// of a CPU.
func parseMilli(text string) (int, error) {
	wrong := func() (int, error) {
		return 0, fmt.Errorf("%q is no CPU time, such as 4, 2.5 or 500m", text)
	}
	if digits, ok := strings.CutSuffix(text, "m"); ok {
		n, err := parseDigits(digits)
		if err != nil {
			return wrong()
		}
		return n, nil
	}
	whole, part, dot := strings.Cut(text, ".")
	n, err := parseDigits(whole)
	if err != nil || n > 1<<40 || dot && (part == "" || len(part) > 3) {
		return wrong()
	}
	milli := 0
	if dot {
		if milli, err = parseDigits((part + "00")[:3]); err != nil {
			return wrong()
		}
	}
	return 1000*n + milli, nil
}

// parseDigits reads a number without a sign.
func parseDigits(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int(n), err
}

// parseBytes reads a number of bytes: "1048576", "512Mi", "2Gi" or "2G".
func parseBytes(text string) (int64, error) {
	number, factor := text, int64(1)
	for _, u := range []struct {
		suffix string
		factor int64
	}{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}} {
		if n, ok := strings.CutSuffix(text, u.suffix); ok {
			number, factor = n, u.factor
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || int64(n) > (1<<62)/factor {
		return 0, fmt.Errorf("%q is no amount of bytes, such as 512Mi or 2Gi", text)
	}
	return int64(n) * factor, nil
}
