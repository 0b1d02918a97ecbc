package stats

// Settled are the scenarios that need no more rounds, by a look at the run so far: a strategy that is decided against its
// references, the tenant alone and no isolation, and is beaten by another strategy; and no isolation ("" if there is none)
// where it is decided against alone, and all strategies are against it. Beaten is said of an interval that lies beyond 1: no
// verdict comes of it, but only to whom the time goes.
//
// What is dropped keeps the verdicts of the look, and the others get those of the end: each look has its own half of the
// chance of a false one (Judge with twice the number of comparisons).
func Settled(strategies []string, alone, nothing string, ratio func(scenario, against string) (Verdict, Interval)) []string {
	decided := func(scenario, against string) bool {
		v, _ := ratio(scenario, against)
		return v == Worse || v == Better || v == Equivalent
	}
	beaten := func(scenario, by string) bool {
		_, own := ratio(scenario, by)
		_, other := ratio(by, scenario)
		return own.Known() && own.Low > 1 || other.Known() && other.High < 1
	}
	var settled []string
	all := true
	for _, s := range strategies {
		all = all && (nothing == "" || decided(s, nothing))
		if !decided(s, alone) || nothing != "" && !decided(s, nothing) {
			continue
		}
		for _, other := range strategies {
			if beaten(s, other) {
				settled = append(settled, s)
				break
			}
		}
	}
	if nothing != "" && all && decided(nothing, alone) {
		settled = append(settled, nothing)
	}
	return settled
}
