package detect

// MeanOf returns what a workload's signal usually is at a CPU use.
func (d *Detector) MeanOf(group string, s Signal, use float64) float64 {
	_, mean, _ := d.byGroup[group].baseline.threshold(s, use)
	return mean
}
