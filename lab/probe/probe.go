// Package probe measures the machine itself between rounds: four fixed pieces
// of work (ALU, L2, L3, DRAM) whose speed should not change while an
// experiment runs. Where it does, the machine changed under the experiment.
package probe

// Reading is one run of one probe.
type Reading struct {
	Probe string  `json:"probe"` // "alu", "l2", "l3", "dram"
	NS    float64 `json:"ns"`    // nanoseconds per operation (alu: per dependent multiply; others: per dependent load)
}
