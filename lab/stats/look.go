package stats

// Settled are the scenarios that need no more rounds, by the verdicts of a look at the run so far: a strategy that is
// decided against its references, the tenant alone and no isolation, and is worse than another strategy; and no isolation
// ("" if there is none) where it is decided against alone, and all strategies are against it.
//
// What is dropped keeps the verdicts of the look, and the others get those of the end: each look has its own half of the
// chance of a false one (Judge with twice the number of comparisons).
func Settled(strategies []string, alone, nothing string, verdict func(scenario, against string) Verdict) []string {
	decided := func(scenario, against string) bool {
		v := verdict(scenario, against)
		return v == Worse || v == Better || v == Equivalent
	}
	var settled []string
	all := true
	for _, s := range strategies {
		all = all && (nothing == "" || decided(s, nothing))
		if !decided(s, alone) || nothing != "" && !decided(s, nothing) {
			continue
		}
		for _, other := range strategies {
			if verdict(s, other) == Worse || verdict(other, s) == Better {
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
