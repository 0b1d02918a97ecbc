package resctrl

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
)

// share is an allocation of a cache: one of percent, ways and mask.
type share struct {
	given     bool
	low, high int // percent
	ways      int
	mask      uint64
}

var errShare = errors.New(`it is "60%", "20-60%", "4 ways", "0-3" (numbers of ways) or "0xf0"`)

func parseShare(text string) (s share, err error) {
	s.given = true
	text = strings.TrimSpace(text)
	number := func(text string, most int) (n int) {
		if n, err = strconv.Atoi(strings.TrimSpace(text)); err == nil && (n < 0 || n > most) {
			err = errShare
		}
		return n
	}
	if p, ok := strings.CutSuffix(text, "%"); ok {
		low, high, isRange := strings.Cut(p, "-")
		if !isRange {
			if s.high = number(low, 100); err == nil && s.high == 0 {
				return s, errors.New("0% is no part of a cache: leave it out, or give it at least one way")
			}
		} else if s.low = number(low, 100); err == nil {
			if s.high = number(high, 100); err == nil && s.low > s.high {
				err = errors.New("a range of percent rises")
			}
		}
	} else if w, ok := strings.CutSuffix(strings.TrimSuffix(text, "s"), "way"); ok {
		if s.ways = number(w, 64); err == nil && s.ways == 0 {
			err = errors.New("0 ways are no part of a cache")
		}
	} else if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		s.mask, err = strconv.ParseUint(hex, 16, 64)
	} else {
		var set cpuset.Set
		if set, err = cpuset.Parse(text); err == nil {
			for bit := range set.All() {
				if bit > 63 {
					return s, errors.New("no cache has so many ways")
				}
				s.mask |= 1 << bit
			}
		}
	}
	if err != nil && !errors.Is(err, errShare) && errors.Unwrap(err) != nil {
		err = fmt.Errorf("%q: %w", text, errShare)
	} else if err != nil {
		err = fmt.Errorf("%q: %w", text, err)
	}
	if err == nil && s.high == 0 && s.ways == 0 && s.mask == 0 {
		err = fmt.Errorf("%q: it is no way", text)
	}
	return s, err
}

// byDomain reads an allocation by cache ids: the value of a domain is the one that names it,
// else that of "all". ok is false where neither is given.
type byDomain struct {
	all   any
	some  map[int]any
	given bool
}

// kinds are the keys of an allocation that is told apart by what is cached.
var kinds = []string{"unified", "code", "data"}

func domainsOf(a any) (d byDomain, err error) {
	if a == nil {
		return d, nil
	}
	d.given = true
	m, isMap := a.(map[string]any)
	if !isMap || slices.ContainsFunc(kinds, func(k string) bool { return m[k] != nil }) {
		d.all = a
		return d, nil
	}
	d.some = map[int]any{}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "all" {
			d.all = m[key]
			continue
		}
		ids, err := cpuset.Parse(key)
		if err != nil {
			return d, fmt.Errorf("%q is neither \"all\" nor a list of cache ids", key)
		}
		for id := range ids.All() {
			if _, twice := d.some[id]; twice {
				return d, fmt.Errorf("cache id %d is there twice", id)
			}
			d.some[id] = m[key]
		}
	}
	return d, nil
}

// of returns what a cache id has, nil if nothing is said of it.
func (d *byDomain) of(id int) any {
	if v, ok := d.some[id]; ok {
		return v
	}
	return d.all
}

// each checks all that is said in an allocation.
func each(a any, check func(v any) error) error {
	d, err := domainsOf(a)
	if err != nil || !d.given {
		return err
	}
	for _, v := range append(slices.Collect(maps.Values(d.some)), d.all) {
		if v == nil {
			continue
		}
		if err := check(v); err != nil {
			return err
		}
	}
	return nil
}

func eachCache(a any, check func(share) error) error {
	return each(a, func(v any) error {
		kinds, err := kindsOf(v)
		if err != nil {
			return err
		}
		for _, text := range kinds {
			s, err := parseShare(text)
			if err == nil && check != nil {
				err = check(s)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// kindsOf reads a text, or one each of {unified, code, data}.
func kindsOf(v any) (map[string]string, error) {
	switch v := v.(type) {
	case string:
		return map[string]string{"unified": v}, nil
	case map[string]any:
		all := map[string]string{}
		for _, kind := range slices.Sorted(maps.Keys(v)) {
			text, ok := v[kind].(string)
			if !ok || !slices.Contains(kinds, kind) {
				return nil, fmt.Errorf("%q: it has the texts unified, code and data", kind)
			}
			all[kind] = text
		}
		_, code := all["code"]
		_, data := all["data"]
		if code != data {
			return nil, errors.New("code and data: both or none, beside unified for hosts that do not tell them apart")
		}
		return all, nil
	}
	return nil, fmt.Errorf("%v: %w, as text", v, errShare)
}

// limit is an allocation of bandwidth in the units that it is given in.
type limit struct {
	percent uint64 // 0: none
	mbps    uint64
}

var errLimit = errors.New(`it is "50%", "2000MBps" or "20GBps", or a list of these`)

var suffixes = []struct {
	suffix string
	by     uint64
}{{"%", 1}, {"MBps", 1}, {"GBps", 1000}}

func limitOf(v any) (l limit, err error) {
	items, isList := v.([]any)
	if !isList {
		items = []any{v}
	}
	for _, item := range items {
		text, ok := item.(string)
		if !ok {
			return l, errLimit
		}
		text = strings.TrimSpace(text)
		unit, scale := "", uint64(1)
		for _, u := range suffixes {
			if strings.HasSuffix(text, u.suffix) {
				unit, scale = u.suffix, u.by
			}
		}
		n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(text, unit)), 10, 32)
		if err != nil || unit == "" || n == 0 || unit == "%" && n > 100 {
			return l, fmt.Errorf("%q: %w", text, errLimit)
		}
		if unit == "%" {
			l.percent = n
		} else {
			l.mbps = n * scale
		}
	}
	return l, nil
}

func eachBandwidth(a any) error {
	return each(a, func(v any) error {
		_, err := limitOf(v)
		return err
	})
}
