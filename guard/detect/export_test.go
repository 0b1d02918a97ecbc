package detect

// MeanOf returns what a workload's signal usually is at a CPU use.
func (d *Detector) MeanOf(group string, s Signal, use float64) float64 {
	_, mean, _ := d.byGroup[group].baseline.threshold(s, use)
	return mean
}

// Learnt is how many workloads have a baseline.
func (d *Detector) Learnt() (n int) {
	for _, w := range d.workloads {
		if w.baseline != nil {
			n++
		}
	}
	return n
}

// Sound reports whether all that was learnt is finite and not negative.
func (d *Detector) Sound() bool {
	for _, w := range d.workloads {
		if w.baseline == nil {
			continue
		}
		for _, means := range w.baseline {
			for _, m := range means {
				if m.N < 0 || !finite(m.Mean) || m.Mean < 0 || !finite(m.Variance) || m.Variance < 0 {
					return false
				}
			}
		}
	}
	return true
}
