package nri

import "berth.dev/berth/agent"

// Node is what has the containers' places, to read.
func (p *Plugin) Node() *agent.Node { return p.node }
