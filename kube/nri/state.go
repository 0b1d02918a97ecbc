package nri

import (
	"context"

	"berth.dev/berth/place"
)

// State returns who holds what and what is free. It waits for the decision at work.
func (p *Plugin) State(ctx context.Context) (*place.State, error) { return p.node.State(ctx) }
